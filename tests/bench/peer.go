package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	certutil "k8s.io/client-go/util/cert"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
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
	base       = "fairlead-base" // an earlier Fairlead
	reverse    = "reverseproxy"
	haproxy    = "haproxy"
	nginx      = "nginx"
	nghttpx    = "nghttpx"
	aggregator = "kube-apiserver"
	direct     = "direct" // the extension server itself
)

// peer is a server under measurement.
type peer struct {
	name    string
	address string
	tls     *tls.Config
	part    *cluster.Part
	front   *cluster.Front // nil: it is not Fairlead
	visits  string         // where it takes visits. Empty: at the same address
	backend string         // what a bare proxy forwards to. Empty: the extension server
}

// world is everything that runs.
type world struct {
	*cluster.Cluster

	self    string // this executable
	bin     string // Fairlead's
	base    string // an earlier one's
	backend string // the extension server's address
	tls     *tls.Config
	peers   []*peer
	args    []string // further arguments of Fairlead
}

func (w *world) peer(name string) *peer {
	for _, p := range w.peers {
		if p.name == name {
			return p
		}
	}
	return nil
}

// start starts a peer. A program that is not installed is reported by its name.
func (w *world) start(ctx context.Context, name string) error {
	p := &peer{name: name, tls: w.tls}
	var err error
	switch name {
	case fairlead:
		err = w.startFairlead(ctx, p)
	case base:
		err = w.startFairlead(ctx, p)
	case aggregator:
		p.part, p.address = w.APIServers[0], strings.TrimPrefix(w.Endpoint().URL, "https://")
	case direct:
		p.address = w.backend
	default:
		err = w.startPeer(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	w.peers = append(w.peers, p)
	return nil
}

func (w *world) startFairlead(ctx context.Context, p *peer, args ...string) error {
	if err := w.launch(ctx, p, args...); err != nil {
		return err
	}
	return w.WaitAvailable(ctx, p.front.Endpoint, group+"/v1")
}

// launch starts a Fairlead that may have nothing available yet.
func (w *world) launch(ctx context.Context, p *peer, args ...string) error {
	args = append([]string{
		"--access-log=" + filepath.Join(w.Dir(), p.name+".access.log"), "--http2-max-streams-per-connection=" + strconv.Itoa(maxStreams),
	}, args...)
	bin := w.bin
	if p.name == base {
		bin = w.base
	}
	front, err := w.StartFairlead(ctx, cluster.Fairlead{Path: bin, Name: p.name, Args: append(args, w.args...)})
	if err != nil {
		return err
	}
	p.front, p.part, p.address = front, front.Part, strings.TrimPrefix(front.Endpoint.URL, "https://")
	return nil
}

// startPeer starts one of those who know nothing of Kubernetes.
func (w *world) startPeer(ctx context.Context, p *peer) error {
	pair, err := w.PKI.Serving.Issue(p.name, cluster.Leaf{User: p.name, Names: []string{"127.0.0.1", "localhost"}})
	if err != nil {
		return err
	}
	if p.address, err = freeAddress(ctx); err != nil {
		return err
	}
	cmd := cluster.Command{Name: p.name + p.backend, Ready: listens(p.address)}
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
		err = w.configureHAProxy(ctx, p, pair, file, values)
	case nginx:
		cmd.Args = []string{"-p", w.Dir(), "-c", file}
		err = write(file, nginxConfig, values)
	case nghttpx:
		cmd.Args = []string{"--conf=" + file}
		_, values["Port"], _ = strings.Cut(p.address, ":")
		_, values["BackendPort"], _ = strings.Cut(w.backend, ":")
		err = write(file, nghttpxConfig, values)
	default:
		err = errors.New("there is no such peer")
	}
	if err == nil && cmd.Path == "" {
		cmd.Path, err = exec.LookPath(p.name)
	}
	if err != nil {
		return err
	}
	p.part, err = w.Run(ctx, cmd)
	return err
}

// configureHAProxy has it forward to the extension server, and where it takes visits discovery to
// kube-apiserver, as an authenticating proxy.
func (w *world) configureHAProxy(ctx context.Context, p *peer, pair cluster.Pair, file string, values map[string]any) (err error) {
	if p.visits, err = freeAddress(ctx); err != nil {
		return err
	}
	bundle, identity, front := file+".pem", file+"-client.pem", w.PKI.FrontProxyPair
	values["Bundle"], values["Identity"], values["Visits"] = bundle, identity, p.visits
	values["APIServer"], values["ClientCA"] = strings.TrimPrefix(w.Endpoint().URL, "https://"), w.PKI.Client.CertFile
	return errors.Join(join(bundle, pair.CertFile, pair.KeyFile), join(identity, front.CertFile, front.KeyFile), write(file, haproxyConfig, values))
}

func write(file, text string, values any) error {
	var b bytes.Buffer
	if err := template.Must(template.New("").Parse(text)).Execute(&b, values); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o600)
}

// join writes one file of several: HAProxy wants a certificate and its key in one.
func join(to string, from ...string) error {
	var all []byte
	for _, f := range from {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		all = append(all, b...)
	}
	return os.WriteFile(to, all, 0o600)
}

func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// listens reports whether somebody accepts connections.
func listens(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// clientTLS trusts the cluster's servers. Their certificates name no address of a test machine but
// the loopback.
func clientTLS(caFile string) (*tls.Config, error) {
	pool, err := certutil.NewPool(caFile)
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}, nil
}
