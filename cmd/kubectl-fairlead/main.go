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
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// version is set by the linker (make build).
var version = "devel"

// exitUnavailable is the exit code when what was asked about is unavailable or refused: for scripts that wait or watch.
const exitUnavailable = 3

// errUnavailable ends a command that worked and found something unavailable or refused. The command
// has said so already.
var errUnavailable = errors.New("unavailable")

func main() {
	err := cli.Run(root())
	if errors.Is(err, errUnavailable) {
		os.Exit(exitUnavailable)
	}
	cli.Exit(err)
}

func root() *cobra.Command {
	cmd := cli.Root("kubectl-fairlead", "Ask Fairlead, the front door of a cluster, how it is and where requests go", version,
		statusCommand(), explainCommand(), lintCommand())
	cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: called(os.Args[0])}
	return cmd
}

// called is what was typed, for help: fairlead gives its own name on.
func called(self string) string {
	if name := filepath.Base(self); !strings.HasPrefix(name, "kubectl-") {
		return name
	}
	return "kubectl fairlead"
}
