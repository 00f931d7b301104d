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

// plugin is the program with the subcommands for people. It links kubectl's connection flags and
// with them kustomize, which do not belong in the process that holds the front-proxy key.
const plugin = "kubectl-fairlead"

// pluginCommand returns a subcommand that replaces this process by the plugin. The plugin parses
// the flags.
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
			return nil, cobra.ShellCompDirectiveError // reached only if the plugin cannot run
		},
	}
}

// becomePlugin replaces this process by the plugin, under the same name, so that its help shows
// what the user typed.
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

// findPlugin looks next to the executable self, then in PATH. It skips a link to self, which would
// execute itself forever: fairlead was its own plugin once.
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
	return "", errors.New(plugin + ", which has this subcommand, is neither next to " + self + " nor in PATH")
}
