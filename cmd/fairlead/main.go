// Command fairlead is the Kubernetes API aggregation layer as a program: a cluster's front door.
//
// serve runs it, version prints the version. For the others the process becomes kubectl-fairlead.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry/apiservices"
)

var version = "devel" // set by the linker (make build)

func main() { cli.Exit(cli.Run(root())) }

func root() *cobra.Command {
	return cli.Root("fairlead", "The front door of a Kubernetes cluster: API aggregation as a program of its own",
		version, serveCommand(), pluginCommand("status", "Show the APIServices in order, and whether each can be used"),
		pluginCommand("top", "Show who sends the requests, and what they do"),
		pluginCommand("explain", "Explain where a request goes, why, as which user, and what is wrong there"),
		pluginCommand("lint", "Find what is wrong, or soon will be, with APIServices and certificates"))
}

func serveCommand() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the front door", Args: cobra.NoArgs,
		Long: `Run the front door.

Flags have kube-apiserver's names if the meaning is the same. Missing or contradictory ones are
reported one per line, with exit code 2, before anything listens. Settings of a single APIService
are annotations (docs/annotations.md).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // who reads the log, as journald, may end first
			o.anonymousSet = cmd.Flags().Changed("anonymous-auth")
			if err := o.validate(); err != nil {
				return cli.Usage(err)
			}
			net.DefaultResolver.Dial = dialNameserver
			return run(cmd.Context(), o, newLogger(cmd.ErrOrStderr(), o.logFormat, o.verbosity))
		},
	}
	cli.Flags(cmd, o.flagGroups())
	return cmd
}

// plugin is the program with the subcommands for people. Its package says why it is another one.
const plugin = "kubectl-fairlead"

// pluginCommand returns a subcommand that replaces this process by the plugin, which parses flags.
func pluginCommand(name, short string) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, DisableFlagParsing: true,
		Long: short + ".\n\nIt is run by " + plugin + ": see fairlead " + name + " --help.",
		RunE: func(_ *cobra.Command, args []string) error { return becomePlugin(slices.Concat([]string{name}, args)) },
		ValidArgsFunction: func(_ *cobra.Command, args []string, last string) ([]string, cobra.ShellCompDirective) {
			_ = becomePlugin(slices.Concat([]string{cobra.ShellCompRequestCmd, name}, args, []string{last}))
			return nil, cobra.ShellCompDirectiveError // reached only if the plugin cannot run
		},
	}
}

// becomePlugin replaces this process by the plugin, under the same name: help shows what was typed.
func becomePlugin(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("looking for %s: %w", plugin, err)
	}
	path, err := findPlugin(self)
	if err != nil {
		return err
	}
	//nolint:gosec // the program next to this one, or in the user's PATH
	err = syscall.Exec(path, slices.Concat(os.Args[:1], args), os.Environ())
	return fmt.Errorf("running %s: %w", path, err)
}

// findPlugin looks next to the executable self, then in PATH. A link to self, as it was once, would run itself forever.
func findPlugin(self string) (string, error) {
	own, err := os.Stat(self)
	if err != nil {
		return "", fmt.Errorf("looking for %s: %w", plugin, err)
	}
	for _, name := range []string{filepath.Join(filepath.Dir(self), plugin), plugin} {
		path, err := exec.LookPath(name)
		if found, gone := os.Stat(path); err == nil && gone == nil && !os.SameFile(own, found) {
			return path, nil
		}
	}
	return "", errors.New(plugin + ", which has this subcommand, is neither next to " + self + " nor in PATH")
}

// newLogger makes the log, and sends klog (client-go, k8s.io/apiserver) and package log (net/http) to it.
func newLogger(w io.Writer, format string, verbosity int) *slog.Logger {
	const debugFrom = 4 // the klog verbosity from which our own debug lines are logged
	o := &slog.HandlerOptions{}
	if verbosity >= debugFrom {
		o.Level = slog.LevelDebug
	}
	w = patient{w, make(chan struct{}, 1)}
	var h slog.Handler = slog.NewTextHandler(w, o)
	if format == "json" {
		h = slog.NewJSONHandler(printable.JSON(w), o) // the text handler quotes by itself
	}
	// client-go's verbose lines (from 6 on) show requests' bodies, and a TokenReview's is a user's
	// token. A handler with slog.LevelDebug, which is klog's 4, never prints them.
	klog.SetLogger(logr.FromSlogHandler(dropGone{h}))
	slog.SetDefault(slog.New(dropGone{h})) // and so package log: net/http writes with a connection's mutex held
	return slog.New(h)
}

// patient is a log that may block, as when its reader is paused. A line waits for a second; while one is stuck, others
// are lost. Otherwise client-go's watches, which log their failures, would end there, and so would probes and a drain.
type patient struct {
	io.Writer
	stuck chan struct{} // holds the line that is being written
}

// Write is called for one line at a time, by the handler.
func (p patient) Write(line []byte) (int, error) {
	select {
	case p.stuck <- struct{}{}:
		done, kept := make(chan struct{}), slices.Clone(line) // the handler uses its array again
		go func() { _, _ = p.Writer.Write(kept); <-p.stuck; close(done) }()
		select {
		case <-done:
		case <-time.After(time.Second):
		}
	default:
	}
	return len(line), nil
}

// dropGone drops what k8s.io/apiserver logs of clients that leave early, and of queries that it cannot read or that
// make a SubjectAccessReview fail, and bodies that a server sends unasked, as after HEAD, which net/http prints:
// clients could fill the log. Outages show in reviews, local-apiserver and etcd.
type dropGone struct{ slog.Handler }

func (p dropGone) Handle(ctx context.Context, r slog.Record) error {
	gone := r.Message == "Couldn't parse request" || strings.HasPrefix(r.Message, "Unsolicited response received") ||
		strings.HasPrefix(r.Message, "Failed to make webhook authorizer request")
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		gone = gone || r.Message == "Failed to watch" && a.Equal(slog.String("reflector", "registry"))
		gone = gone || ok && (apiservices.ClientGone(err) ||
			strings.HasPrefix(err.Error(), "failed to build impersonation cache key"))
		return !gone
	})
	if gone {
		return nil
	}
	return p.Handler.Handle(ctx, r)
}

func (p dropGone) WithAttrs(a []slog.Attr) slog.Handler { return dropGone{p.Handler.WithAttrs(a)} }

func (p dropGone) WithGroup(name string) slog.Handler { return dropGone{p.Handler.WithGroup(name)} }
