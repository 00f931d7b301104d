package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

//go:embed *.conf
var configs embed.FS

// The peers, in the order of the report.
const (
	fairlead   = "fairlead"
	before     = "before" // another build of Fairlead
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

	o         *options
	r         results
	self      string // this executable
	extension *cluster.Part
	backend   string // the extension server's address
	tls       *tls.Config
	peers     map[string]*peer
}

// want returns the peers of the command line, or else those in names.
func (w *world) want(ctx context.Context, names ...string) (list []*peer) {
	if w.o.peers != "" {
		names = strings.Split(w.o.peers, ",")
	}
	for _, name := range names {
		list = append(list, w.have(ctx, name))
	}
	return list
}

// have returns a peer, and starts it if it is missing.
func (w *world) have(ctx context.Context, name string) *peer {
	if p := w.peers[name]; p != nil {
		return p
	}
	p := &peer{name: name, tls: w.tls}
	switch name {
	case fairlead, before:
		p = w.another(ctx, name)
	case aggregator:
		p.part, p.address = w.APIServers[0], strings.TrimPrefix(w.Endpoint().URL, "https://")
	case direct:
		p.address = w.backend
	default:
		w.startPeer(ctx, p)
	}
	w.peers[name] = p
	return p
}

func (w *world) another(ctx context.Context, name string, args ...string) *peer {
	p := w.launch(ctx, name, args...)
	try.Do(w.WaitAvailable(ctx, p.front.Endpoint, group+"/v1"))
	return p
}

// launch starts a Fairlead, without waiting for APIServices.
func (w *world) launch(ctx context.Context, name string, args ...string) *peer {
	bin := w.o.bin
	if name == before {
		bin = try.Get(exec.LookPath(w.o.before))
	}
	f := try.Get(w.StartFairlead(ctx, cluster.Fairlead{Path: bin, Name: name, Args: append([]string{
		"--access-log=" + filepath.Join(w.Dir(), name+".access.log"), "--http2-max-streams-per-connection=" + strconv.Itoa(maxStreams),
	}, args...)}))
	return &peer{name: name, tls: w.tls, front: f, part: f.Part, address: strings.TrimPrefix(f.Endpoint.URL, "https://")}
}

// startPeer starts a peer that does not know Kubernetes. The error for a missing program names it.
func (w *world) startPeer(ctx context.Context, p *peer) {
	pair := w.serving(p.name, "127.0.0.1", "localhost")
	p.address = freeAddress(ctx)
	cmd := cluster.Command{Name: p.name + p.backend, Ready: cluster.Listens(p.address)}
	file := filepath.Join(w.Dir(), p.name+".conf")
	switch p.name {
	case reverse:
		cmd.Path = w.self
		cmd.Args = []string{reverse, p.address, pair.CertFile, pair.KeyFile, cmp.Or(p.backend, w.backend), w.PKI.Serving.CertFile}
	case haproxy:
		cmd.Args, p.visits = []string{"-db", "-f", file}, freeAddress(ctx)
	case nginx:
		cmd.Args = []string{"-p", w.Dir(), "-c", file}
	case nghttpx:
		cmd.Args = []string{"--conf=" + file}
	default:
		try.Do(fmt.Errorf("unknown peer %q", p.name))
	}
	if cmd.Path == "" {
		cmd.Path = try.Get(exec.LookPath(p.name))
		w.configure(p, pair, file)
	}
	p.part = try.Get(w.Run(ctx, cmd))
}

// configure writes the peer's configuration. It forwards to the extension server; HAProxy at the
// address for visits also discovery to kube-apiserver, as a front proxy.
func (w *world) configure(p *peer, pair cluster.Pair, file string) {
	values := map[string]any{
		"Address": p.address, "Backend": w.backend, "Dir": w.Dir(), "Streams": maxStreams,
		"CA": w.PKI.Serving.CertFile, "Cert": pair.CertFile, "Key": pair.KeyFile,
		"Visits": p.visits, "APIServer": strings.TrimPrefix(w.Endpoint().URL, "https://"), "ClientCA": w.PKI.Client.CertFile,
		"Bundle": joined(pair, file+".pem"), "Identity": joined(w.PKI.FrontProxyPair, file+"-client.pem"),
	}
	_, values["Port"], _ = strings.Cut(p.address, ":")
	_, values["BackendPort"], _ = strings.Cut(w.backend, ":")
	var b bytes.Buffer
	try.Do(template.Must(template.ParseFS(configs, "*")).ExecuteTemplate(&b, filepath.Base(file), values))
	try.Do(os.WriteFile(file, b.Bytes(), 0o600))
}

// joined writes a certificate and its key to one file, as HAProxy requires.
func joined(pair cluster.Pair, file string) string {
	both := slices.Concat(try.Get(os.ReadFile(pair.CertFile)), try.Get(os.ReadFile(pair.KeyFile)))
	try.Do(os.WriteFile(file, both, 0o600))
	return file
}

func (w *world) serving(user string, names ...string) cluster.Pair {
	return try.Get(w.PKI.Serving.Issue("bench-"+user, cluster.Leaf{User: user, Names: names}))
}

func freeAddress(ctx context.Context) string {
	l := try.Get(new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"))
	defer l.Close()
	return l.Addr().String()
}
