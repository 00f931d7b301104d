// Command fairlead is the Kubernetes API aggregation layer as a program of its own: the front door of a cluster.
//
// serve runs the front door, version says what was built. For status, explain and lint it becomes kubectl-fairlead.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"
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
	cmd.AddCommand(serveCommand(), versionCommand(),
		pluginCommand("status", "Show the APIServices in order, and whether each can be used"),
		pluginCommand("explain", "Say where a request goes, why, as whom, and what is wrong there"),
		pluginCommand("lint", "Find what is wrong, or soon will be, with APIServices and certificates"))
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
