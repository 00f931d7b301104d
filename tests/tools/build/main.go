// Command build builds the programs that Fairlead is tested with, and prints the file of each:
//
//	go run ./tests/tools/build                 # those that the tests need
//	go run ./tests/tools/build golangci-lint   # only these
//	go run ./tests/tools/build -all
//
// Files go to standard output, one per line, and progress to standard error, so that a Makefile can
// use it as a function. It is fast when everything is built. FAIRLEAD_TOOLS names a folder to use
// instead of the user's cache.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/fairlead-proxy/fairlead/tests/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1) //nolint:gocritic // the signal handler dies with the process
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("build", flag.ContinueOnError)
	flags.SetOutput(stderr)
	all := flags.Bool("all", false, "build every part, linters and Kubernetes' e2e suite included")
	quiet := flags.Bool("q", false, "do not print the files")
	flags.Usage = func() {
		fmt.Fprintf(stderr, "usage: build [-all] [-q] [part…]\nparts: %v\n", tools.All())
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	want := flags.Args()
	switch {
	case *all:
		want = tools.All()
	case len(want) == 0:
		want = tools.Default()
	}
	if *quiet {
		stdout = io.Discard
	}
	files, err := tools.Paths(ctx, tools.Config{Progress: stderr}, want...)
	if err != nil {
		return err
	}
	for _, file := range files {
		fmt.Fprintln(stdout, file)
	}
	return nil
}
