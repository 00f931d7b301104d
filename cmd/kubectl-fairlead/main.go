// Command kubectl-fairlead is what people ask of Fairlead: status and explain ask a running one
// through its front door, lint finds what is wrong, version says what was built. kubectl finds it
// in PATH as its plugin, and fairlead becomes it for these subcommands. It is a program of its own
// because kubectl's connection flags bring kustomize with them: the process that holds the
// front-proxy key links neither.
//
// status and explain read kubectl's own kubeconfig and flags, need no more access than kubectl has,
// and show what the server says. They find out nothing by themselves but which path a resource name
// means, and whether a CustomResourceDefinition claims it too.
//
// Each command is used by one goroutine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker (make build).
var version = "devel"

// Exit codes beside 0: all is well.
const (
	exitFailed      = 1
	exitUsage       = 2 // a mistake in the command line
	exitUnavailable = 3 // what was asked about is unavailable or refused: for scripts that wait or watch
)

// usageError is a mistake in the command line: one line per fault.
type usageError struct{ error }

// errUnavailable ends a command that worked and found something unavailable or refused. The command
// has said so already.
var errUnavailable = errors.New("unavailable")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := root().ExecuteContext(ctx)
	switch {
	case err == nil:
		return
	case errors.Is(err, errUnavailable):
		os.Exit(exitUnavailable)
	}
	fmt.Fprintln(os.Stderr, err)
	if errors.As(err, new(usageError)) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "kubectl-fairlead",
		Short:         "Ask Fairlead, the front door of a cluster, how it is and where requests go",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: called(os.Args[0])},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.AddCommand(statusCommand(), explainCommand(), lintCommand(), versionCommand())
	return cmd
}

// called is what was typed, for help: fairlead gives its own name on.
func called(self string) string {
	if name := filepath.Base(self); !strings.HasPrefix(name, "kubectl-") {
		return name
	}
	return "kubectl fairlead"
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which build this is",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "fairlead %s (%s)\n", version, runtime.Version())
			return err
		},
	}
}
