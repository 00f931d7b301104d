// Command fairlead-dev starts a whole cluster on loopback in one command: etcd, kube-apiserver,
// kube-controller-manager, Kubernetes' sample extension server, and Fairlead in front of them.
// `make run` calls it. With -standalone (`make standalone`) there is no Kubernetes: only etcd, two
// Fairleads over it and an extension server.
//
// It writes a kubeconfig that points at Fairlead, prints what to try, and runs until it is
// interrupted. If one part dies the others keep running. Nothing survives it. It is for trying and
// developing; it never touches an existing cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/fairlead-proxy/fairlead/registry/printable"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "fairlead-dev:", printable.Lines(err.Error()))
		os.Exit(1)
	}
}
