package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/tests/cluster/relay"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// egressOf makes the dialer of a file with this text.
func egressOf(t *testing.T, text string) (func(context.Context, string, string) (net.Conn, error), error) {
	t.Helper()
	p := &process{}
	dial, err := p.egressDialer(writeFile(t, filepath.Join(t.TempDir(), "egress.yaml"), text))
	must.Get(certs.New(certs.Config{Files: p.files}))(t)
	return dial, err
}

const egressHead = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"

// onSocket serves a proxy on a socket, and returns the dialer of a file that names it.
func onSocket(t *testing.T, network string, serve func(c net.Conn, r *bufio.Reader)) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "proxy")
	relay.Accept(t, must.Get(net.Listen("unix", socket))(t), func(_ context.Context, c net.Conn) { serve(c, bufio.NewReader(c)) })
	return must.Get(egressOf(t, egressHead+"- name: "+network+"\n  connection:\n    proxyProtocol: HTTPConnect\n    transport:\n      uds: {udsName: "+socket+"}\n"))(t)
}

// The proxy answers CONNECT on a socket and then echoes.
func TestEgressDialer(t *testing.T) {
	asked := make(chan string, 1)
	dial := onSocket(t, "cluster", func(c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err != nil || req.Method != http.MethodConnect {
			return
		}
		asked <- req.Host
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
		_, _ = io.Copy(c, r)
	})
	c := must.Get(dial(t.Context(), "tcp", "192.0.2.7:443"))(t) // TEST-NET-1: reachable only through the proxy
	defer c.Close()
	check.Same(t, "192.0.2.7:443", <-asked, "asked for")
	must.Get(c.Write([]byte("hello")))(t)
	got := make([]byte, 5)
	must.Get(io.ReadFull(c, got))(t)
	check.Same(t, "hello", string(got), "echo")
}

// A proxy that never answers keeps no connection of a dial that has ended: an agent may hang for days.
func TestEgressDialerGivesUp(t *testing.T) {
	closed := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	dial := onSocket(t, "Cluster", func(_ net.Conn, r *bufio.Reader) {
		_, err := http.ReadRequest(r)
		cancel()
		if err == nil {
			_, err = r.ReadByte()
		}
		closed <- err
	})
	if c, err := dial(ctx, "tcp", "192.0.2.7:443"); c != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", c, err)
	}
	if err := <-closed; !errors.Is(err, io.EOF) {
		t.Errorf("the proxy's end: %v", err)
	}
}

// A proxy that refuses says why.
func TestEgressDialerRefused(t *testing.T) {
	keys, seen := pki.NewCA("egress-ca"), make(chan string, 1)
	proxy := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.TLS.PeerCertificates[0].Subject.CommonName
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	proxy.TLS = &tls.Config{
		Certificates: []tls.Certificate{keys.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: keys.Pool(), MinVersion: tls.VersionTLS12,
	}
	proxy.StartTLS()
	t.Cleanup(proxy.Close)
	ca, _, err := keys.WriteFiles(t.TempDir(), "ca")
	must.Do(t, err)
	cert, key := must.Get2(keys.Issue(pki.Leaf{CommonName: "fairlead"}).WriteFiles(t.TempDir(), "client"))(t)
	dial := func(ca string) error {
		via := must.Get(egressOf(t, egressHead+fmt.Sprintf("- name: cluster\n  connection:\n    proxyProtocol: HTTPConnect\n"+
			"    transport: {tcp: {url: %q, tlsConfig: {caBundle: %s, clientCert: %s, clientKey: %s}}}\n",
			proxy.URL, ca, cert, key)))(t)
		_, err := via(t.Context(), "tcp", "192.0.2.7:443")
		return err
	}
	check.Fault(t, "the egress proxy: it answers 503", dial(ca), "a dial")
	check.Same(t, "fairlead", <-seen, "who asked")
	check.Fault(t, "the egress proxy: tls: failed to verify", dial(cert), "one whose certificate is of another CA")
}

// The client certificates for etcd and an egress proxy are followed, so that their expiry is seen.
func TestClientsOfOthersAreShown(t *testing.T) {
	cert, key := must.Get2(ca.Issue(pki.Leaf{CommonName: "x"}).WriteFiles(t.TempDir(), "x"))(t)
	egress := writeFile(t, filepath.Join(t.TempDir(), "egress.yaml"), egressHead+fmt.Sprintf("- name: cluster\n"+
		"  connection:\n    proxyProtocol: HTTPConnect\n"+
		"    transport: {tcp: {url: 'https://a', tlsConfig: {clientCert: %s, clientKey: %s}}}\n", cert, key))
	d := aloneDoor(t, "--etcd-certfile", cert, "--etcd-keyfile", key, "--egress-selector-config-file", egress)
	all := d.certs.Status()
	for _, use := range []string{"etcd-client", "egress-client"} {
		at := slices.IndexFunc(all, func(st certs.Status) bool { return st.Use == use })
		must.Be(t, at >= 0 && all[at].Chain && all[at].Certificates[0].Subject == "x", "%s: %+v", use, all)
	}
}

func TestEgressDialerOfNothing(t *testing.T) {
	if dial, err := new(process).egressDialer(""); dial != nil || err != nil {
		t.Errorf("no file: %v, want a direct dial", err)
	}
	if dial, err := egressOf(t, egressHead+"- name: etcd\n  connection:\n    proxyProtocol: Direct\n"); dial != nil || err != nil {
		t.Errorf("other networks only: %v, want a direct dial", err)
	}
	if dial, err := egressOf(t, egressHead); dial != nil || err != nil {
		t.Errorf("an empty file: %v, %v, want a direct dial", dial != nil, err)
	}
	_, err := new(process).egressDialer("/does/not/exist")
	check.Fault(t, "/does/not/exist", err, "a missing file")
	const cluster = egressHead + "- name: cluster\n  connection"
	for want, text := range map[string]string{
		`no kind "ConfigMap"`:   "apiVersion: v1\nkind: ConfigMap\n",
		"connections":           cluster + "s: {}\n",
		"needs an https URL":    cluster + ": {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://a'}}}\n",
		"transport must be set": cluster + ": {proxyProtocol: HTTPConnect}\n",
	} {
		_, err := egressOf(t, text)
		check.Fault(t, want, err, "%s", text)
	}
}
