// Package cli is shared by Fairlead's commands: how they are built, how they read the flags that
// several have, how they report errors, and their exit codes.
//
// Only main's goroutine uses it.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/fairlead-proxy/fairlead/internal/printable"
)

type usage struct{ error }

// Usage marks err as a mistake in the command line. err has one line per fault.
func Usage(err error) error { return usage{err} }

// IsUsage reports whether err is a mistake in the command line.
func IsUsage(err error) bool { return errors.As(err, new(usage)) }

// Root makes a command with subcommands, and adds the subcommand version. An unknown subcommand is
// a usage error, and so are arguments that a subcommand does not take.
func Root(use, short, version string, subcommands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Version: fmt.Sprintf("%s (%s)", version, runtime.Version()), SilenceUsage: true, SilenceErrors: true, SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	// cobra's default version text stays: a version template links text/template, which makes the
	// linker keep every exported method, 9 MB.
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage{err} })
	cmd.AddCommand(subcommands...)
	cmd.AddCommand(versionCommand(version))
	cmd.InitDefaultCompletionCmd() // cobra would add it later
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			text += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return usage{errors.New(text)}
	}
	for _, c := range cmd.Commands() {
		if !c.Runnable() { // cobra does not check the arguments of such a command
			c.RunE = cmd.RunE
		}
		if check := c.Args; check != nil {
			c.Args = func(cmd *cobra.Command, args []string) error {
				if err := check(cmd, args); err != nil {
					return usage{fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())}
				}
				return nil
			}
		}
	}
	return cmd
}

func versionCommand(version string) *cobra.Command {
	form := ""
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text := fmt.Sprintf("fairlead %s (%s)", version, runtime.Version())
			switch form {
			case "":
			case "json":
				text = fmt.Sprintf(`{"version": %q, "goVersion": %q, "platform": "%s/%s"}`, version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			default:
				return usage{fmt.Errorf("--output %q is not json", form)}
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().StringVarP(&form, "output", "o", "", "Output format: json.")
	return cmd
}

// columns is the width of help.
const columns = 100

// Flags adds flags to a command, and help that shows them in their groups.
func Flags(cmd *cobra.Command, groups cliflag.NamedFlagSets) {
	for _, name := range groups.Order {
		cmd.Flags().AddFlagSet(groups.FlagSets[name])
	}
	cmd.Long = cmp.Or(cmd.Long, cmd.Short+".")
	if cmd.Example != "" { // the help function below shows only Long and flags
		cmd.Long += "\n\nExamples:\n" + cmd.Example
	}
	cliflag.SetUsageAndHelpFunc(cmd, groups, columns)
}

// Faults are those of a command line, which are reported together.
type Faults []error

// Add adds a fault.
func (f *Faults) Add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

// If adds a fault if something is wrong.
func (f *Faults) If(wrong bool, format string, args ...any) {
	if wrong {
		f.Add(format, args...)
	}
}

// Readable adds a fault if the file of a flag cannot be read. Empty means that there is none.
func (f *Faults) Readable(flag, path string) {
	file, err := os.Open(path)
	f.If(path != "" && err != nil, "%s: %w", flag, err)
	_ = file.Close() // only opened to check that it is readable
}

// Run runs a command. The first signal cancels its context, so that the command can end cleanly;
// the second ends the process at once.
func Run(cmd *cobra.Command) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return cmd.ExecuteContext(ctx)
}

// text returns err for a terminal: a server may have written it. Each fault of usage has a line.
func text(err error) string {
	if IsUsage(err) {
		return printable.Lines(err.Error())
	}
	return printable.Line(err.Error())
}

// Exit ends the process, after printing err if it is not nil. The exit code of a mistake in the
// command line, found before anything is done, is 2; that of any other error is 1.
func Exit(err error) {
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, text(err))
	if IsUsage(err) {
		os.Exit(2)
	}
	os.Exit(1)
}
