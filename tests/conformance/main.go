// Command conformance runs specs of Kubernetes' own e2e suite against a whole cluster behind
// Fairlead: those of sig-api-machinery that need no pods, which are those about what Fairlead
// stands before. It prints a line per spec and how many passed, and exits 1 when one failed or
// fewer ran than expected.
//
// It takes some minutes, mostly of waiting, and is run by hand (make conformance).
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kubelet"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

const (
	// direct is the lane that has no Fairlead in it: what fails there is not Fairlead's fault.
	direct = "direct"
	// impersonate is the lane before a kube-apiserver as a cloud runs it, with the account that
	// deploy/overlays/managed makes.
	impersonate = "impersonate"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.lane, "lane", "h2", "what Fairlead offers its clients: h2 or http1; impersonate: h2, before a kube-apiserver that believes no front proxy; direct: no Fairlead at all")
	flag.StringVar(&o.fairlead, "fairlead", "bin/fairlead", "fairlead executable")
	flag.StringVar(&o.focus, "focus", focus(), "regular expression of the specs to run")
	flag.IntVar(&o.want, "want", 0, "least number of specs; fewer is a failure")
	flag.Parse()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Println("FAIL:", err)
		os.Exit(1) //nolint:gocritic // nothing is deferred that a dead process needs
	}
}

type options struct {
	lane, fairlead, focus string
	want                  int
}

// focus names what is run. What is left out of sig-api-machinery needs pods that run (webhooks,
// conversion, field selectors, a sample apiserver in the cluster) or has nothing to do with how
// requests get to where they are served.
func focus() string {
	return `\[sig-api-machinery\] (` + strings.Join([]string{
		"Discovery", "AggregatedDiscovery", "CustomResourceDefinition", "CustomResourcePublishOpenAPI", "CustomResourceValidationRules",
		"Watchers", "OpenAPIV3", "Servers with support for Table transformation", "health handlers", "FieldValidation", "ServerSideApply",
	}, "|") + `)`
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "fairlead-conformance-")
	if err != nil {
		return err
	}
	cfg := cluster.Config{Dir: dir}
	if o.lane == impersonate {
		cfg.Clouds, cfg.AdminGroup = 1, "conformance-masters"
	}
	c, err := cluster.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	server, err := raise(ctx, c, o)
	if err != nil {
		return err
	}
	node, err := join(ctx, c, server)
	if err != nil {
		return err
	}
	defer node.Close()
	report := filepath.Join(dir, "report.json")
	if err := suite(ctx, c, o, server, report); err != nil {
		return fmt.Errorf("running the suite, see %s: %w", dir, err)
	}
	data, err := os.ReadFile(report)
	if err != nil {
		return fmt.Errorf("reading report: %w", err)
	}
	if err := tell(out, data, o.want); err != nil {
		return fmt.Errorf("%w; logs of all parts: %s", err, dir)
	}
	return os.RemoveAll(dir)
}

// raise puts everything around the control plane that the suite needs, and returns where it is
// pointed at.
func raise(ctx context.Context, c *cluster.Cluster, o options) (cluster.Endpoint, error) {
	server := c.Endpoint()
	if o.lane != direct {
		args := []string{"--http2=" + strconv.FormatBool(o.lane != "http1")}
		if o.lane == impersonate {
			account, err := c.Account(ctx, server, "deploy", "managed")
			if err != nil {
				return server, err
			}
			args = append(args, "--local-identity=impersonate", "--kubeconfig="+account)
		}
		front, err := c.StartFairlead(ctx, cluster.Fairlead{Path: o.fairlead, Args: args})
		if err != nil {
			return server, err
		}
		server = front.Endpoint
	}
	_, err := c.StartControllerManager(ctx, server)
	return server, err
}

// join makes the one node without which the suite does not begin.
func join(ctx context.Context, c *cluster.Cluster, server cluster.Endpoint) (*kubelet.Kubelet, error) {
	serving, err := c.PKI.Serving.Issue("kubelet", cluster.Leaf{User: "system:node:harbour", Names: []string{"127.0.0.1"}})
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(serving.CertFile, serving.KeyFile)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	clients.AddCert(c.PKI.Client.CA.Certificate)
	node, err := kubelet.New(kubelet.Config{Certificate: pair, ClientCAs: clients, Dir: c.Dir()})
	if err != nil {
		return nil, err
	}
	core, err := kubernetes.NewForConfig(server.RESTConfig(c.Admin()))
	if err == nil {
		err = node.Join(ctx, core, "harbour")
	}
	if err != nil {
		node.Close()
		return nil, err
	}
	return node, nil
}

// suite runs the specs. That some failed is for the report to say.
func suite(ctx context.Context, c *cluster.Cluster, o options, server cluster.Endpoint, report string) error {
	path, err := tools.Path(ctx, tools.Config{Progress: os.Stderr}, "e2e.test")
	if err != nil {
		return err
	}
	kubectl, err := tools.Path(ctx, tools.Config{Progress: os.Stderr}, "kubectl")
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(c.Dir(), "e2e.kubeconfig")
	if err := server.WriteKubeconfig(kubeconfig, c.Admin()); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(c.Dir(), "e2e.log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	// 30 min: the specs take about four minutes on two cores.
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path,
		"--kubeconfig="+kubeconfig, "--kubectl-path="+kubectl, "--provider=skeleton",
		"--allowed-not-ready-nodes=-1", "--minStartupPods=0", // there is a node, but nothing that would make it more than an object
		"--ginkgo.focus="+o.focus, `--ginkgo.skip=\[Serial\]|\[Slow\]|\[Disruptive\]|\[Flaky\]`, "--ginkgo.no-color", "--ginkgo.json-report="+report,
	)
	cmd.Dir = c.Dir()
	cmd.Env = append(os.Environ(), "HOME="+c.Dir()) // kubectl's caches are of this cluster
	cmd.Stdout, cmd.Stderr = log, log
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return nil
	}
	return err
}
