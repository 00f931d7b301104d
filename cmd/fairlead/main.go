// Command fairlead is the Kubernetes API aggregation layer as a program of its own: the front door of a cluster.
//
// Its subcommands share nothing but this file: serve runs the front door, status and explain ask a running one, lint finds what is wrong, version says what was built.
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
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/fairlead-proxy/fairlead/cmd/fairlead/console"
)

// version is set by the linker (make build).
var version = "devel"

// Exit codes: 2 is a mistake in the command line, found before anything listens; 1 is everything else.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a mistake in the command line: one line per fault.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal drains; with the handler gone, the second one ends the process at once.
	context.AfterFunc(ctx, stop)
	if err := root().ExecuteContext(ctx); err != nil {
		if errors.As(err, new(console.Unavailable)) {
			os.Exit(console.ExitUnavailable)
		}
		fmt.Fprintln(os.Stderr, err)
		if errors.As(err, new(usageError)) {
			os.Exit(exitUsage)
		}
		os.Exit(exitFailed)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "fairlead",
		Short:         "The front door of a Kubernetes cluster: API aggregation as a program of its own",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-") {
		// Installed as kubectl-fairlead it is a plugin: help should show what was typed.
		cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl fairlead"}
	}
	cmd.AddCommand(serveCommand(), lintCommand(), versionCommand())
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	cmd.AddCommand(console.Commands(streams, func(err error) error { return usageError{err} })...)
	return cmd
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

func serveCommand() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the front door",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.anonymousSet = cmd.Flags().Changed("anonymous-auth")
			if err := o.validate(); err != nil {
				return usageError{err}
			}
			return run(cmd.Context(), o, cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().SortFlags = false
	return cmd
}
