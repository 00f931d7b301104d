// Command conformance runs specs of Kubernetes' own e2e suite against a cluster behind Fairlead:
// those of sig-api-machinery that need no pods. It prints a line per spec and the totals, and exits
// 1 when a spec failed or fewer ran than expected.
//
// It takes some minutes, mostly waiting, and is run by hand (make conformance).
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

const (
	direct = "direct" // runs the suite without Fairlead: what fails there is not Fairlead's fault
	// impersonate is a lane in front of a kube-apiserver as clouds run it, with the account of deploy/overlays/managed.
	impersonate = "impersonate"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	lane := flag.String("lane", "h2", "what Fairlead offers its clients: h2 or http1; impersonate: h2, before a kube-apiserver that believes no front proxy; direct: no Fairlead at all")
	want := flag.Int("want", 0, "least number of specs; fewer is a failure")
	flag.Parse()
	if err := run(ctx, *lane, *want); err != nil {
		fmt.Println("FAIL:", err)
		os.Exit(1) //nolint:gocritic // nothing is deferred that a dead process needs
	}
}

// focus selects the specs. The rest of sig-api-machinery needs running pods (webhooks, conversion, field selectors, a
// sample apiserver in the cluster) or has nothing to do with the routing of requests.
const focus = `\[sig-api-machinery\] (Discovery|AggregatedDiscovery|CustomResourceDefinition|CustomResourcePublishOpenAPI|` +
	`CustomResourceValidationRules|Watchers|OpenAPIV3|Servers with support for Table transformation|health handlers|FieldValidation|ServerSideApply)`

func run(ctx context.Context, lane string, want int) (err error) {
	defer try.Catch(&err)
	dir := try.Get(os.MkdirTemp("", "fairlead-conformance-"))
	cfg := cluster.Config{Dir: dir}
	if lane == impersonate {
		cfg.Clouds, cfg.AdminGroup = 1, "conformance-masters"
	}
	c := try.Get(cluster.Start(ctx, cfg))
	defer func() { err = errors.Join(err, c.Close()) }()
	server := raise(ctx, c, lane)
	try.Get(c.StartNode(ctx, server, "harbour", "127.0.0.1")) // without any, the suite does not start
	if err := suite(ctx, c, server, want); err != nil {
		return fmt.Errorf("running the suite: %w; logs of all processes: %s", err, dir)
	}
	return os.RemoveAll(dir)
}

// raise starts the processes that the suite needs around the control plane, and returns the server to test.
func raise(ctx context.Context, c *cluster.Cluster, lane string) cluster.Endpoint {
	server := c.Endpoint()
	if lane != direct {
		args := []string{fmt.Sprintf("--http2=%t", lane != "http1")}
		if lane == impersonate {
			account := try.Get(c.Account(ctx, server, "deploy", "managed"))
			args = append(args, "--local-identity=impersonate", "--kubeconfig="+account)
		}
		server = try.Get(c.StartFairlead(ctx, cluster.Fairlead{Path: "bin/fairlead", Args: args})).Endpoint
	}
	try.Get(c.StartControllerManager(ctx, server))
	return server
}

// suite runs the specs, and prints Ginkgo's lines about them. It returns an error if a spec failed
// or fewer than want ran.
func suite(ctx context.Context, c *cluster.Cluster, server cluster.Endpoint, want int) error {
	parts := try.Get(tools.Paths(ctx, tools.Config{Progress: os.Stderr}, "e2e.test", "kubectl"))
	kubeconfig := filepath.Join(c.Dir(), "e2e.kubeconfig")
	try.Do(server.WriteKubeconfig(kubeconfig, c.Admin()))
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute) // 30 min: the specs take about four minutes on two cores
	defer cancel()
	cmd := exec.CommandContext(ctx, parts[0],
		"--kubeconfig="+kubeconfig, "--kubectl-path="+parts[1], "--provider=skeleton",
		"--allowed-not-ready-nodes=-1", "--minStartupPods=0", // there is a node, but only as an object
		"--ginkgo.focus="+focus, `--ginkgo.skip=\[Serial\]|\[Slow\]|\[Disruptive\]|\[Flaky\]`, "--ginkgo.no-color", "--ginkgo.silence-skips",
	)
	cmd.Dir = c.Dir()
	cmd.Env = append(os.Environ(), "HOME="+c.Dir()) // kubectl must not use another cluster's caches
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, &said), os.Stderr
	if err := cmd.Run(); err != nil { // also if a spec failed
		return err
	}
	passed := 0
	if _, totals, ok := bytes.Cut(said.Bytes(), []byte("SUCCESS! -- ")); ok {
		try.Get(fmt.Fscan(bytes.NewReader(totals), &passed))
	}
	if passed < want {
		return fmt.Errorf("%d specs passed, %d expected", passed, want)
	}
	return nil
}
