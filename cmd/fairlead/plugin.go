package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
)

// plugin is the program that has the subcommands for people. It links kubectl's connection flags
// and with them kustomize, which have no business in the process that holds the front-proxy key.
const plugin = "kubectl-fairlead"

// pluginCommand is a subcommand of the plugin: this process becomes it. Its flags are the plugin's
// to read.
func pluginCommand(name, short string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short,
		Long:               short + ".\n\nIt is run by " + plugin + ": see fairlead " + name + " --help.",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return becomePlugin(slices.Concat([]string{name}, args))
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, last string) ([]string, cobra.ShellCompDirective) {
			_ = becomePlugin(slices.Concat([]string{cobra.ShellCompRequestCmd, name}, args, []string{last}))
			return nil, cobra.ShellCompDirectiveError // only when it could not
		},
	}
}

// becomePlugin runs the plugin in place of this process, under the same name, so that its help
// shows what was typed.
func becomePlugin(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("looking for %s: %w", plugin, err)
	}
	path, err := findPlugin(self)
	if err != nil {
		return err
	}
	//nolint:gosec // the program beside this one, or the one that the user's own PATH names
	err = syscall.Exec(path, slices.Concat(os.Args[:1], args), os.Environ())
	return fmt.Errorf("running %s: %w", path, err)
}

// findPlugin looks beside the executable self, then in PATH. A link to self is passed over:
// fairlead was its own plugin once, and would run itself for ever.
func findPlugin(self string) (string, error) {
	own, err := os.Stat(self)
	if err != nil {
		return "", fmt.Errorf("looking for %s: %w", plugin, err)
	}
	for _, name := range []string{filepath.Join(filepath.Dir(self), plugin), plugin} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if found, err := os.Stat(path); err == nil && !os.SameFile(own, found) {
			return path, nil
		}
	}
	return "", errors.New(plugin + ", which has this subcommand, is neither beside " + self + " nor in PATH")
}
