// Command build builds the programs that Fairlead is tested with, and prints the file of each:
//
//	go run ./tests/tools/build                 # those that the tests need
//	go run ./tests/tools/build golangci-lint   # only these
//	go run ./tests/tools/build -all
//
// Files go to standard output, one per line, and progress to standard error, so that a Makefile can
// use it as a function. It is fast when everything is built. FAIRLEAD_TOOLS names a folder to use
// instead of the user's cache, FAIRLEAD_KUBERNETES another release of Kubernetes (v1.34.4).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/fairlead-proxy/fairlead/tests/tools"
)

func main() {
	all := flag.Bool("all", false, "build every part, linters and Kubernetes' e2e suite included")
	quiet := flag.Bool("q", false, "do not print the files")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: build [-all] [-q] [part…]\nparts: %v\n", tools.All())
		flag.PrintDefaults()
	}
	flag.Parse()
	want := flag.Args()
	switch {
	case *all:
		want = tools.All()
	case len(want) == 0:
		want = tools.Default()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	files, err := tools.Paths(ctx, tools.Config{Progress: os.Stderr}, want...)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
	for _, file := range files {
		if !*quiet {
			fmt.Println(file)
		}
	}
}
