// Command fairlead-dev brings up a whole cluster on loopback in one command: etcd, kube-apiserver, kube-controller-manager, Kubernetes'
// sample extension server, and Fairlead in front of them. `make run` calls it.
//
// It writes a kubeconfig that points at Fairlead, prints what to try, and runs until it is interrupted or one of its parts dies. Nothing
// survives it. It is for trying and developing; it never touches a cluster that exists.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
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
		fmt.Fprintln(os.Stderr, "fairlead-dev:", err)
		os.Exit(1)
	}
}
