package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func credentialOf(t *testing.T, dir, user string) (*credential, error) {
	t.Helper()
	return newCredential(t.Context(), kubeconfigOf(t, dir, user), slog.New(slog.DiscardHandler))
}

// kubeconfigOf writes a kubeconfig for user to dir and returns its configuration.
func kubeconfigOf(t *testing.T, dir, user string) *rest.Config {
	t.Helper()
	kube, _, _, err := clientConfig(writeFile(t, filepath.Join(dir, "kubeconfig"), kubeconfigText("https://127.0.0.1:6443", nil, user)), nil, false)
	must.Do(t, err)
	return kube
}

func (k *credential) showsTo(t *testing.T) string {
	t.Helper()
	pair := must.Get(k.pair.GetClientCertificate(nil))(t)
	var shown bytes.Buffer
	for _, der := range pair.Certificate {
		shown.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	return shown.String()
}

func TestCredential(t *testing.T) {
	clients := pki.NewCA("clients")
	pair := clients.Issue(pki.Leaf{CommonName: "fairlead"})
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "token"), "t2\n")
	must.Get2(pair.WriteFiles(dir, "user"))(t)
	for _, tc := range []struct{ name, user, want, wrong string }{
		{"token", `"token":"t1"`, "Bearer t1", ""},
		{"token file", `"tokenFile":"token"`, "Bearer t2", ""},
		{"basic", `"username":"a","password":"b"`, "Basic YTpi", ""},
		{"certificate", embedded(pair), "", ""},
		{"certificate files", `"client-certificate":"user.crt","client-key":"user.key"`, "", ""},
		{"nothing", ``, "", "no credential to impersonate callers with"},
		{"somebody else", `"token":"t1","as":"root"`, "", "it already impersonates a user"},
		{"a group", `"token":"t1","as":"root","as-groups":["g"]`, "", "it already impersonates a user"},
		{"no plugin", `"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/nowhere/plugin","interactiveMode":"Never"}`, "", "getting our own credential"},
	} {
		k, err := credentialOf(t, dir, tc.user)
		if check.Fault(t, tc.wrong, err, "%s", tc.name); err != nil {
			continue
		}
		certificate := ""
		if tc.want == "" {
			certificate = string(pair.CertPEM())
		}
		check.Same(t, []string{tc.want, certificate}, []string{k.Authorization(), k.showsTo(t)}, "%s: credential and certificate", tc.name)
	}
}

// writePlugin writes an exec plugin that prints what it is told to and counts its runs.
func writePlugin(t *testing.T, dir string) (user string, says func(status string, args ...any), calls func() int) {
	t.Helper()
	command := filepath.Join(dir, "plugin")
	must.Do(t, os.WriteFile(command, fmt.Appendf(nil, "#!/bin/sh\necho >>%[1]s/calls\ncat %[1]s/says\n", dir), 0o700))
	says = func(status string, args ...any) {
		const text = `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{%s}}`
		must.Do(t, os.Rename(writeFile(t, filepath.Join(dir, "next"), fmt.Sprintf(text, fmt.Sprintf(status, args...))), filepath.Join(dir, "says")))
	}
	calls = func() int {
		data, _ := os.ReadFile(filepath.Join(dir, "calls")) // none: it has not run yet
		return bytes.Count(data, []byte("\n"))
	}
	return fmt.Sprintf(`"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":%q,"interactiveMode":"Never"}`, command), says, calls
}

// A changed kubeconfig takes effect within a second, and reading it does not wait for a plugin. A plugin runs when its
// token has expired and when the token was refused, but never on a read of the credential.
func TestCredentialOfPlugin(t *testing.T) {
	dir := t.TempDir()
	user, says, calls := writePlugin(t, dir)
	synctest.Test(t, func(t *testing.T) {
		k := must.Get(credentialOf(t, dir, `"token":"t1"`))(t)
		must.Run(t, k.Run)
		want := func(after time.Duration, authorization string, runs int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			check.Same(t, authorization, k.Authorization(), "after %v", after)
			check.Same(t, runs, calls(), "runs of the plugin after %v", after)
		}
		says(`"token":"t2","expirationTimestamp":%q`, time.Now().Add(-time.Minute).UTC().Format(time.RFC3339))
		must.Do(t, k.take(kubeconfigOf(t, dir, user)))
		want(0, "Bearer t1", 0)
		want(time.Second, "Bearer t2", 2) // it expires before a look is over, which asks for a certificate, too
		says(`"token":"t3","expirationTimestamp":%q`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		want(time.Second, "Bearer t3", 3)
		says(`"token":"t4"`)
		want(time.Minute, "Bearer t3", 3)
		k.renew()
		want(time.Second, "Bearer t4", 4)
		pair, changed := pki.NewCA("clients").Issue(pki.Leaf{CommonName: "fairlead"}), k.pair.Changed()
		says(`"clientCertificateData":%q,"clientKeyData":%q`, pair.CertPEM(), pair.KeyPEM())
		k.renew()
		want(time.Minute, "", 5)
		check.Same(t, string(pair.CertPEM()), k.showsTo(t), "certificate")
		<-changed // it is announced, once
		changed = k.pair.Changed()
		want(time.Minute, "", 5)
		check.Same(t, true, changed == k.pair.Changed(), "an unchanged certificate is not announced")
	})
}

// A signal ends the start, too, though the plugin hangs.
func TestPluginThatHangs(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo") // cat waits until something has written to it
	must.Do(t, syscall.Mkfifo(fifo, 0o600))
	kube := kubeconfigOf(t, t.TempDir(), `"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"cat","args":["`+fifo+`"],"interactiveMode":"Never"}`)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := newCredential(ctx, kube, slog.New(slog.DiscardHandler))
		ended <- err
	}()
	plugin := must.Get(os.OpenFile(fifo, os.O_WRONLY, 0))(t) // waits until cat reads
	defer plugin.Close()
	cancel()
	err := must.Come(t, 10*time.Second, "it waits no more", ended)
	check.Same(t, true, errors.Is(err, context.Canceled) && !cli.IsUsage(err), "it ends with %v", err)
}

// While a plugin hangs, another kubeconfig is taken. The plugin is asked once, and what it says at last is too late.
func TestKubeconfigWhileAPluginHangs(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		k := must.Get(credentialOf(t, dir, `"token":"t1"`))(t)
		var asked atomic.Int32
		answer := make(chan struct{})
		k.source.Load().ask = promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			asked.Add(1)
			<-answer
			return &http.Response{Header: http.Header{"Authorization": {"Bearer late"}}, Body: http.NoBody, Request: r}, nil
		})
		stop := must.Run(t, k.Run)
		time.Sleep(time.Minute)
		must.Do(t, k.take(kubeconfigOf(t, dir, `"token":"t2"`)))
		time.Sleep(time.Minute)
		check.Same(t, "Bearer t2", k.Authorization(), "while the plugin hangs")
		close(answer)
		time.Sleep(time.Minute)
		check.Same(t, "Bearer t2", k.Authorization(), "when it answers")
		check.Same(t, int32(1), asked.Load(), "times that it was asked")
		stop()
	})
}

// A refused credential is renewed soon, but not more often than cloud providers tolerate. If the
// file disappears, the last token stays.
func TestCredentialIsRenewed(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	write := func(token string) { writeFile(t, file, token) }
	synctest.Test(t, func(t *testing.T) {
		write("t1")
		k := must.Get(credentialOf(t, dir, `"tokenFile":"token"`))(t)
		must.Run(t, k.Run)
		want := func(after time.Duration, token string) {
			t.Helper()
			time.Sleep(after)
			check.Same(t, "Bearer "+token, k.Authorization(), "after %v", after)
		}
		write("t2")
		want(5*time.Second, "t1")
		k.renew()
		k.renew() // one renewal for many refusals
		want(1500*time.Millisecond, "t2")
		write("t3")
		k.renew()
		want(5*time.Second, "t2")
		want(6*time.Second, "t3")
		write("t4")
		want(2*time.Minute, "t4")
		must.Do(t, os.Remove(file))
		k.renew()
		want(2*time.Minute, "t4")
		write("t5")
		want(2*time.Minute, "t5")
	})
}

// A kubeconfig whose credential cannot be got does not end the last one's renewal. The next that can be used is taken.
func TestUselessKubeconfig(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "token")
	writeFile(t, file, "t1")
	synctest.Test(t, func(t *testing.T) {
		k := must.Get(credentialOf(t, dir, `"tokenFile":"token"`))(t)
		must.Run(t, k.Run)
		must.Do(t, k.take(kubeconfigOf(t, other, `"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/nowhere/useless","interactiveMode":"Never"}`)))
		writeFile(t, file, "t2")
		time.Sleep(2 * time.Minute)
		check.Same(t, "Bearer t2", k.Authorization(), "with a useless kubeconfig")
		must.Do(t, k.take(kubeconfigOf(t, other, `"token":"t3"`)))
		time.Sleep(15 * time.Second)
		check.Same(t, "Bearer t3", k.Authorization(), "with a good one")
	})
}

// Beside a useless kubeconfig, too, the plugin of the last one runs again when its token was refused.
func TestRefusedBesideUselessKubeconfig(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	user, says, _ := writePlugin(t, dir)
	says(`"token":"t1"`)
	synctest.Test(t, func(t *testing.T) {
		k := must.Get(credentialOf(t, dir, user))(t)
		must.Run(t, k.Run)
		must.Do(t, k.take(kubeconfigOf(t, other, `"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/nowhere/useless","interactiveMode":"Never"}`)))
		says(`"token":"t2"`)
		k.renew()
		time.Sleep(time.Minute)
		check.Same(t, "Bearer t2", k.Authorization(), "with a useless kubeconfig")
	})
}
