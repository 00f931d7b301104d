package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func credentialOf(t *testing.T, dir, user string) (*credential, error) {
	t.Helper()
	return newCredential(t.Context(), kubeconfigOf(t, dir, user), slog.New(slog.DiscardHandler))
}

// kubeconfigOf writes a kubeconfig for user to dir and returns its configuration.
func kubeconfigOf(t *testing.T, dir, user string) *rest.Config {
	t.Helper()
	kube, _, _, err := clientConfig(writeFile(t, filepath.Join(dir, "kubeconfig"), kubeconfigText("https://127.0.0.1:6443", nil, user)), nil)
	must.Do(t, err)
	return kube
}

func (k *credential) showsTo(t *testing.T) string {
	t.Helper()
	pair := must.Get(k.clientCertificate(nil))(t)
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
	writePair(t, pair, dir, "user")
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
		t.Run(tc.name, func(t *testing.T) {
			k, err := credentialOf(t, dir, tc.user)
			if (err == nil) != (tc.wrong == "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Fatalf("%v, want %q", err, tc.wrong)
			}
			if err != nil {
				return
			}
			certificate := ""
			if tc.want == "" {
				certificate = string(pair.CertPEM())
			}
			if got := k.Authorization(); got != tc.want || k.showsTo(t) != certificate {
				t.Errorf("credential %q, certificate %q", got, k.showsTo(t))
			}
		})
	}
}

// writePlugin writes an exec plugin that prints the content of a file and counts its runs.
func writePlugin(t *testing.T, dir string) (user string, says func(status string), calls func() int) {
	t.Helper()
	command := filepath.Join(dir, "plugin")
	script := fmt.Sprintf("#!/bin/sh\necho >>%[1]s/calls\ncat %[1]s/says\n", dir)
	must.Do(t, os.WriteFile(command, []byte(script), 0o700))
	says = func(status string) {
		next := writeFile(t, filepath.Join(dir, "next"), fmt.Sprintf(`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{%s}}`, status))
		must.Do(t, os.Rename(next, filepath.Join(dir, "says")))
	}
	calls = func() int {
		data := must.Get(os.ReadFile(filepath.Join(dir, "calls")))(t)
		return bytes.Count(data, []byte("\n"))
	}
	return fmt.Sprintf(`"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":%q,"interactiveMode":"Never"}`, command), says, calls
}

// A plugin runs when its token has expired and when the token was refused, but never on a read of
// the credential.
func TestCredentialOfPlugin(t *testing.T) {
	dir := t.TempDir()
	user, says, calls := writePlugin(t, dir)
	expires := func(in time.Duration) string { return time.Now().Add(in).UTC().Format(time.RFC3339) }
	says(fmt.Sprintf(`"token":"t1","expirationTimestamp":%q`, expires(-time.Minute)))
	k := must.Get(credentialOf(t, dir, user))(t)
	if k.Authorization() != "Bearer t1" {
		t.Fatalf("%q", k.Authorization())
	}
	says(fmt.Sprintf(`"token":"t2","expirationTimestamp":%q`, expires(time.Hour)))
	last := k.source.Load()
	for range 3 {
		must.Do(t, k.look(last))
	}
	before := calls()
	if k.Authorization() != "Bearer t2" || before > 4 {
		t.Errorf("%q after %d calls", k.Authorization(), before)
	}
	says(fmt.Sprintf(`"token":"t3","expirationTimestamp":%q`, expires(time.Hour)))
	fresh := must.Get(last.again())(t)
	if err := k.look(fresh); err != nil || k.Authorization() != "Bearer t3" || calls() != before+1 {
		t.Errorf("%v: %q after %d calls, there were %d", err, k.Authorization(), calls(), before)
	}
	for range 1000 {
		_ = k.Authorization()
	}
	check.Same(t, before+1, calls(), "runs of the plugin after reading the credential")
	pair := pki.NewCA("clients").Issue(pki.Leaf{CommonName: "fairlead"})
	says(fmt.Sprintf(`"clientCertificateData":%q,"clientKeyData":%q`, pair.CertPEM(), pair.KeyPEM()))
	changed := k.Changed()
	fresh = must.Get(k.source.Load().again())(t)
	if err := k.look(fresh); err != nil || k.Authorization() != "" || k.showsTo(t) != string(pair.CertPEM()) {
		t.Errorf("a certificate: %v, %q", err, k.Authorization())
	}
	select {
	case <-changed:
	default:
		t.Error("a changed certificate is not announced")
	}
}

// A changed kubeconfig takes effect within a second, and reading it does not wait for a plugin.
func TestCredentialFollows(t *testing.T) {
	dir := t.TempDir()
	k := must.Get(credentialOf(t, dir, `"token":"t1"`))(t)
	user, says, _ := writePlugin(t, dir)
	says(`"token":"t2"`)
	if err := k.take(kubeconfigOf(t, dir, user)); err != nil || k.Authorization() != "Bearer t1" {
		t.Fatalf("%v: %q before the first look", err, k.Authorization())
	}
	if _, err := os.Stat(filepath.Join(dir, "calls")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the plugin was run: %v", err)
	}
	must.Run(t, k.Run)
	must.Soon(t, time.Minute, "the plugin's token", func() bool { return k.Authorization() == "Bearer t2" })
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
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) || cli.IsUsage(err) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it still waits")
	}
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
