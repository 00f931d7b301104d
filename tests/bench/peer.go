package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	_ "embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	certutil "k8s.io/client-go/util/cert"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/try"
)

//go:embed haproxy.cfg
var haproxyConfig string

//go:embed nginx.conf
var nginxConfig string

//go:embed nghttpx.conf
var nghttpxConfig string

// The peers, in the order of the report.
const (
	fairlead   = "fairlead"
	reverse    = "reverseproxy"
	haproxy    = "haproxy"
	nginx      = "nginx"
	nghttpx    = "nghttpx"
	aggregator = "kube-apiserver"
	direct     = "direct" // the extension server itself
)

type peer struct {
	name    string
	address string
	tls     *tls.Config
	part    *cluster.Part
	front   *cluster.Front // nil unless it is Fairlead
	visits  string         // the address for visits; empty: address
	backend string         // what a bare proxy forwards to; empty: the extension server
}

type world struct {
	*cluster.Cluster

	o       *options
	r       *results
	self    string // this executable
	backend string // the extension server's address
	tls     *tls.Config
	peers   []*peer
}

func (w *world) peer(name string) *peer {
	i := slices.IndexFunc(w.peers, func(p *peer) bool { return p.name == name })
	if i < 0 {
		return nil
	}
	return w.peers[i]
}

// start starts a peer. The error for a missing program names it.
func (w *world) start(ctx context.Context, name string) *peer {
	p := &peer{name: name, tls: w.tls}
	switch name {
	case fairlead:
		w.startFairlead(ctx, p)
	case aggregator:
		p.part, p.address = w.APIServers[0], strings.TrimPrefix(w.Endpoint().URL, "https://")
	case direct:
		p.address = w.backend
	default:
		w.startPeer(ctx, p)
	}
	w.peers = append(w.peers, p)
	return p
}

func (w *world) startFairlead(ctx context.Context, p *peer, args ...string) {
	w.launch(ctx, p, args...)
	try.Do(w.WaitAvailable(ctx, p.front.Endpoint, group+"/v1"))
}

// launch starts a Fairlead, without waiting for APIServices.
func (w *world) launch(ctx context.Context, p *peer, args ...string) {
	args = append([]string{
		"--access-log=" + filepath.Join(w.Dir(), p.name+".access.log"), "--http2-max-streams-per-connection=" + strconv.Itoa(maxStreams),
	}, args...)
	p.front = try.Get(w.StartFairlead(ctx, cluster.Fairlead{Path: w.o.bin, Name: p.name, Args: args}))
	p.part, p.address = p.front.Part, strings.TrimPrefix(p.front.Endpoint.URL, "https://")
}

// startPeer starts a peer that does not know Kubernetes.
func (w *world) startPeer(ctx context.Context, p *peer) {
	pair := try.Get(w.PKI.Serving.Issue(p.name, cluster.Leaf{User: p.name, Names: []string{"127.0.0.1", "localhost"}}))
	p.address = freeAddress(ctx)
	cmd := cluster.Command{Name: p.name + p.backend, Ready: cluster.Listens(p.address)}
	values := map[string]any{
		"Address": p.address, "Backend": w.backend, "CA": w.PKI.Serving.CertFile, "Cert": pair.CertFile, "Key": pair.KeyFile,
		"Dir": w.Dir(), "Streams": maxStreams,
	}
	file := filepath.Join(w.Dir(), p.name+".conf")
	switch p.name {
	case reverse:
		cmd.Path = w.self
		cmd.Args = []string{
			"reverseproxy", "-address=" + p.address, "-tls-cert-file=" + pair.CertFile, "-tls-private-key-file=" + pair.KeyFile,
			"-backend=" + cmp.Or(p.backend, w.backend), "-backend-ca-file=" + w.PKI.Serving.CertFile,
		}
	case haproxy:
		cmd.Args = []string{"-db", "-f", file}
		w.configureHAProxy(ctx, p, pair, file, values)
	case nginx:
		cmd.Args = []string{"-p", w.Dir(), "-c", file}
		write(file, nginxConfig, values)
	case nghttpx:
		cmd.Args = []string{"--conf=" + file}
		_, values["Port"], _ = strings.Cut(p.address, ":")
		_, values["BackendPort"], _ = strings.Cut(w.backend, ":")
		write(file, nghttpxConfig, values)
	default:
		try.Do(fmt.Errorf("unknown peer %q", p.name))
	}
	if cmd.Path == "" {
		cmd.Path = try.Get(exec.LookPath(p.name))
	}
	p.part = try.Get(w.Run(ctx, cmd))
}

// configureHAProxy lets it forward to the extension server and, at the address for visits,
// discovery to kube-apiserver, as a front proxy.
func (w *world) configureHAProxy(ctx context.Context, p *peer, pair cluster.Pair, file string, values map[string]any) {
	p.visits = freeAddress(ctx)
	bundle, identity, front := file+".pem", file+"-client.pem", w.PKI.FrontProxyPair
	values["Bundle"], values["Identity"], values["Visits"] = bundle, identity, p.visits
	values["APIServer"], values["ClientCA"] = strings.TrimPrefix(w.Endpoint().URL, "https://"), w.PKI.Client.CertFile
	join(bundle, pair)
	join(identity, front)
	write(file, haproxyConfig, values)
}

func write(file, text string, values any) {
	var b bytes.Buffer
	try.Do(template.Must(template.New("").Parse(text)).Execute(&b, values))
	try.Do(os.WriteFile(file, b.Bytes(), 0o600))
}

// join writes a certificate and its key to one file, as HAProxy requires.
func join(file string, pair cluster.Pair) {
	both := slices.Concat(try.Get(os.ReadFile(pair.CertFile)), try.Get(os.ReadFile(pair.KeyFile)))
	try.Do(os.WriteFile(file, both, 0o600))
}

func freeAddress(ctx context.Context) string {
	l := try.Get(new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"))
	defer l.Close()
	return l.Addr().String()
}

// clientTLS trusts the cluster's servers. Of a test machine's addresses their certificates name
// only loopback.
func clientTLS(caFile string) *tls.Config {
	return &tls.Config{RootCAs: try.Get(certutil.NewPool(caFile)), ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
}
