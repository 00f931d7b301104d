// Package cli is what our commands have in common: how they are made, how they say what went wrong, and their exit codes.
//
// It is used by main's goroutine alone, and knows nothing of what a command does.
package cli

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

// Exit codes: 2 is a mistake in the command line, found before anything is done; 1 is everything else.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usage is a mistake in the command line.
type usage struct{ error }

// Usage makes err a mistake in the command line: one line per fault.
func Usage(err error) error { return usage{err} }

// IsUsage reports whether err is a mistake in the command line.
func IsUsage(err error) bool { return errors.As(err, new(usage)) }

// Root makes a command of subcommands and adds the one that says which version was built.
func Root(use, short, version string, subcommands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, SilenceUsage: true, SilenceErrors: true, Args: cobra.NoArgs}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage{err} })
	cmd.AddCommand(subcommands...)
	cmd.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Say which build this is",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "fairlead %s (%s)\n", version, runtime.Version())
			return err
		},
	})
	return cmd
}

// Run runs a command. The first signal ends its context, and what it does is brought to an end; the second one ends the process at once.
func Run(cmd *cobra.Command) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return cmd.ExecuteContext(ctx)
}

// Exit ends the process, and says why when it has failed.
func Exit(err error) {
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, err)
	if IsUsage(err) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}
