// Command kubectl-fairlead has Fairlead's subcommands for people: status and explain query a
// running Fairlead through its front door, lint finds what is wrong, init makes certificates for
// clusters whose CAs are not available, version prints the version. kubectl finds it in PATH as a
// plugin, and fairlead executes it for these subcommands. It is a separate program because
// kubectl's connection flags link kustomize, which must stay out of the process that holds the
// front-proxy key.
//
// status and explain use kubectl's own kubeconfig and flags, need no more access than kubectl has,
// and show what the server says. Themselves they only find the path of a resource name, and
// CustomResourceDefinitions that claim the same group-version.
//
// Each command is used by one goroutine.
package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// version is set by the linker (make build).
var version = "devel"

// exitUnavailable is the exit code if the subject is unavailable or refused, for scripts that wait
// or watch.
const exitUnavailable = 3

// errUnavailable ends a command that worked, and has printed that something is unavailable or
// refused.
var errUnavailable = errors.New("unavailable")

func main() {
	err := cli.Run(root())
	if errors.Is(err, errUnavailable) {
		os.Exit(exitUnavailable)
	}
	cli.Exit(err)
}

func root() *cobra.Command {
	cmd := cli.Root("kubectl-fairlead", "Ask Fairlead, the front door of a cluster, about its state and where requests go", version,
		statusCommand(), explainCommand(), lintCommand(), initCommand())
	cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: called(os.Args[0])}
	return cmd
}

// called returns the command's name as typed, for help: fairlead passes its own name on.
func called(self string) string {
	if name := filepath.Base(self); !strings.HasPrefix(name, "kubectl-") {
		return name
	}
	return "kubectl fairlead"
}
