// Package cluster runs a real, throw-away Kubernetes control plane on loopback: etcd, one or more
// kube-apiservers with a PKI of their own, and on request kube-controller-manager, the sample
// extension server and any other program. fairlead-dev and the e2e tests use it.
//
// Every program is a child process with files of its own. Each is owned by one goroutine, and none
// outlives this process, even if that is killed. The methods of a Cluster are safe for concurrent
// use, and clusters of several processes do not interfere.
//
// There are no nodes: StartNode simulates one.
package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
	"github.com/fairlead-proxy/fairlead/tests/servers/kubelet"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

// Config describes a cluster. The zero value is one etcd and one kube-apiserver, with a temporary folder.
type Config struct {
	Dir        string   // holds keys, data and logs, and is kept. Empty: a temporary folder that Close removes.
	Loopback   string   // where servers listen. Empty: 127.0.0.1.
	APIServers int      // the number of kube-apiservers that share the etcd. Zero: one. Negative: none.
	Members    int      // the number of etcd members. Zero: one.
	EtcdArgs   []string // appended to the arguments of each member; later ones override. Nil: none.
	Nodes      []string // the kube-apiservers' network namespaces (of ip netns), in their order. Nil: this process's.
	// Clouds is how many of the kube-apiservers, the last ones, run as cloud providers run them:
	// without --requestheader flags, so they trust no front proxy. Zero: none.
	Clouds     int
	AdminGroup string // the group of Admin, bound to cluster-admin as by kubeadm and clouds. Empty: system:masters.
	UIDHeaders bool   // makes the kube-apiservers accept X-Remote-Uid. False: they drop it, as kubeadm's do.
	// BelieverArgs are appended to the arguments of each kube-apiserver that trusts front proxies,
	// before APIServerArgs. Nil: none.
	BelieverArgs  []string
	Audit         bool     // makes each kube-apiserver record who asks for what, in Dir. False: nothing is recorded.
	APIServerArgs []string // appended to the arguments of each kube-apiserver; later ones override. Nil: none.
	// Progress receives a line per program that must be built first. Nil: standard error, since a build takes minutes.
	Progress io.Writer
}

// Cluster is a running control plane. Close ends it.
type Cluster struct {
	PKI        *PKI    // all its keys
	APIServers []*Part // the kube-apiservers, in the order of Config.APIServers
	Etcd       *Part   // the store of the kube-apiservers and the sample extension server: the first member
	Members    []*Part // of etcd

	cfg       Config
	dir       string
	temporary bool       // Close removes dir
	etcdURL   string     // of all Members, comma-separated
	urls      []string   // of APIServers
	deaths    chan error // unexpected ends of processes; never closed

	mu     sync.Mutex // guards parts, nodes and closed
	parts  []*Part    // in the order they were started
	nodes  []*kubelet.Kubelet
	closed bool
}

// Start starts a cluster and waits until it is ready. ctx covers the start only.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	c := &Cluster{cfg: cfg.complete(), deaths: make(chan error, 8)} // 8: one would do, see Part.supervise
	if err := c.makeDir(); err != nil {
		return nil, fmt.Errorf("making the cluster's folder: %w", err)
	}
	if err := c.boot(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting cluster: %w", err), c.Close())
	}
	return c, nil
}

func (c Config) complete() Config {
	c.Progress = cmp.Or[io.Writer](c.Progress, os.Stderr)
	c.Loopback = cmp.Or(c.Loopback, "127.0.0.1")
	c.APIServers = cmp.Or(c.APIServers, 1)
	c.Members = max(c.Members, 1)
	c.AdminGroup = cmp.Or(c.AdminGroup, mastersGroup)
	return c
}

// tool returns the file of a program, and builds it if necessary.
func (c Config) tool(ctx context.Context, name string) (string, error) {
	return tools.Path(ctx, tools.Config{Progress: c.Progress}, name)
}

func (c *Cluster) makeDir() (err error) {
	c.dir = c.cfg.Dir
	if c.dir == "" {
		c.dir, err = os.MkdirTemp("", "fairlead-cluster-")
		c.temporary = true
		return err
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return err
	}
	return os.MkdirAll(c.dir, 0o700)
}

func (c *Cluster) boot(ctx context.Context) (err error) {
	defer try.Catch(&err)
	// Build both first: a build of minutes must not use up the time for becoming ready.
	try.Get(c.cfg.tool(ctx, "etcd"))
	if c.cfg.APIServers > 0 {
		try.Get(c.cfg.tool(ctx, "kube-apiserver"))
	}
	// 5 min: an idle machine with two cores needs about 4 s for one, but suites start six kube-apiservers at once,
	// perhaps on slow cores beside a compiler. A program that ends is noticed at once.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if c.PKI, err = newPKI(filepath.Join(c.dir, "pki"), c.cfg.AdminGroup); err != nil {
		return fmt.Errorf("making keys: %w", err)
	}
	try.Do(c.startEtcd(ctx))
	for i := range c.cfg.APIServers {
		try.Do(c.startAPIServer(ctx, i, c.etcdURL))
	}
	if c.cfg.AdminGroup != mastersGroup {
		return c.bindAdmin(ctx)
	}
	return nil
}

// Run starts a program in the cluster and waits until it is ready.
func (c *Cluster) Run(ctx context.Context, cmd Command) (*Part, error) {
	p := &Part{cmd: cmd, log: filepath.Join(c.dir, cmd.Name+".log"), deaths: c.deaths}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, fmt.Errorf("starting %s: the cluster is closed", cmd.Name)
	}
	c.parts = append(c.parts, p) // before it runs, so that Close finds it
	c.mu.Unlock()
	return p, p.start(ctx)
}

// StartNode joins a stub kubelet at an address to the cluster, through an endpoint, until Close.
func (c *Cluster) StartNode(ctx context.Context, through Endpoint, name, address string) (k *kubelet.Kubelet, err error) {
	defer try.Catch(&err)
	serving := try.Get(c.PKI.Serving.Issue("kubelet-"+name, Leaf{User: "system:node:" + name, Names: []string{address}}))
	dir := filepath.Join(c.dir, "node-"+name)
	try.Do(os.MkdirAll(dir, 0o700))
	k = try.Get(kubelet.New(kubelet.Config{
		Address: address, Certificate: try.Get(tls.LoadX509KeyPair(serving.CertFile, serving.KeyFile)), ClientCAs: c.PKI.Client.CA.Pool(), Dir: dir,
	}))
	c.mu.Lock()
	c.nodes = append(c.nodes, k)
	c.mu.Unlock()
	return k, k.Join(ctx, try.Get(kubernetes.NewForConfig(through.RESTConfig(c.Admin()))), name)
}

// Wait blocks until a process ends unexpectedly, and returns the cause with the end of its log, or until ctx ends.
func (c *Cluster) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-c.deaths:
		return err
	}
}

// Close kills every process, the latest first, and removes a temporary folder. It may be repeated.
func (c *Cluster) Close() error {
	c.mu.Lock()
	c.closed = true
	parts, nodes := c.parts, c.nodes
	c.mu.Unlock()
	for _, n := range nodes {
		n.Close()
	}
	for _, p := range slices.Backward(parts) {
		p.Kill() // not gracefully: whatever a process would still write is discarded
	}
	if c.temporary {
		return os.RemoveAll(c.dir)
	}
	return nil
}

// Dir is the folder of the cluster's files. Programs that Run starts may use it, too.
func (c *Cluster) Dir() string { return c.dir }

// Endpoint is the first kube-apiserver.
func (c *Cluster) Endpoint() Endpoint { return c.EndpointOf(0) }

// EndpointOf is the kube-apiserver APIServers[i].
func (c *Cluster) EndpointOf(i int) Endpoint {
	return Endpoint{URL: c.urls[i], CAFile: c.PKI.Serving.CertFile}
}

// Admin may do everything, as a member of Config.AdminGroup.
func (c *Cluster) Admin() Credentials { return Credentials{Pair: c.PKI.Admin} }
