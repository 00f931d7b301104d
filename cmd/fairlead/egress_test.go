package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/relay"
)

func writeEgress(t *testing.T, text string) string {
	t.Helper()
	return writeFile(t, filepath.Join(t.TempDir(), "egress.yaml"), text)
}

// connectProxy answers CONNECT on a socket and then echoes; asked receives the requested addresses.
func connectProxy(t *testing.T, socket string) (asked chan string) {
	t.Helper()
	l := must.Get(net.Listen("unix", socket))(t)
	asked = make(chan string, 1)
	relay.Accept(t, l, func(_ context.Context, c net.Conn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil || req.Method != http.MethodConnect {
			return
		}
		asked <- req.Host
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
		_, _ = io.Copy(c, r)
	})
	return asked
}

const egressHead = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"

func TestEgressDialer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "proxy")
	asked := connectProxy(t, socket)
	dial := must.Get(egressDialer(writeEgress(t, egressHead+
		"- name: cluster\n  connection:\n    proxyProtocol: HTTPConnect\n    transport:\n      uds: {udsName: "+socket+"}\n")))(t)
	c := must.Get(dial(t.Context(), "tcp", "192.0.2.7:443"))(t) // TEST-NET-1: reachable only through the proxy
	defer c.Close()
	if got := <-asked; got != "192.0.2.7:443" {
		t.Errorf("the proxy was asked for %q", got)
	}
	must.Get(c.Write([]byte("hello")))(t)
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Errorf("got %q: %v", got, err)
	}
}

func TestEgressDialerOfNothing(t *testing.T) {
	for name, file := range map[string]string{
		"no file": "",
		"other networks only": writeEgress(t, egressHead+
			"- name: etcd\n  connection:\n    proxyProtocol: Direct\n"),
	} {
		dial, err := egressDialer(file)
		if dial != nil || err != nil {
			t.Errorf("%s: %v, want a direct dial", name, err)
		}
	}
	for name, file := range map[string]string{
		"missing":      "/does/not/exist",
		"unknown kind": writeEgress(t, "apiVersion: v1\nkind: ConfigMap\n"),
		"typing error": writeEgress(t, egressHead+"- name: cluster\n  connections: {}\n"),
		"no TLS":       writeEgress(t, egressHead+"- name: cluster\n  connection:\n    proxyProtocol: HTTPConnect\n    transport:\n      tcp: {url: \"http://127.0.0.1:8131\"}\n"),
		"no transport": writeEgress(t, egressHead+"- name: cluster\n  connection:\n    proxyProtocol: HTTPConnect\n"),
	} {
		if _, err := egressDialer(file); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A dialer that ignores its context blocks nobody, and its late connection is closed.
func TestPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		dial := prompt(func(context.Context, string, string) (net.Conn, error) {
			time.Sleep(30 * time.Second)
			return ours, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if c, err := dial(ctx, "tcp", "192.0.2.7:443"); c != nil || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Second {
			t.Errorf("%v, %v after %s", c, err, time.Since(began))
		}
		if _, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the late connection: %v, want it closed", err)
		}
		if c, err := dial(t.Context(), "tcp", "192.0.2.7:443"); c != ours || err != nil {
			t.Errorf("%v, %v", c, err)
		}
	})
}
