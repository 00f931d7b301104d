// Command fairlead is the Kubernetes API aggregation layer as a program of its own: the front door
// of a cluster.
//
// serve runs the front door, version prints the version. For status, explain and lint the process
// becomes kubectl-fairlead.
package main

import (
	"github.com/spf13/cobra"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// version is set by the linker (make build).
var version = "devel"

func main() { cli.Exit(cli.Run(root())) }

func root() *cobra.Command {
	return cli.Root("fairlead", "The front door of a Kubernetes cluster: API aggregation as a program of its own", version, serveCommand(),
		pluginCommand("status", "Show the APIServices in order, and whether each can be used"),
		pluginCommand("explain", "Explain where a request goes, why, as which user, and what is wrong there"),
		pluginCommand("lint", "Find what is wrong, or soon will be, with APIServices and certificates"))
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
				return cli.Usage(err)
			}
			return run(cmd.Context(), o, newLogger(cmd.ErrOrStderr(), o.logFormat, o.verbosity))
		},
	}
	cli.Flags(cmd, o.flagGroups())
	return cmd
}
