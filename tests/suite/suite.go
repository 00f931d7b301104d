//go:build e2e

// Package suite is what the suites on real parts have in common: a cluster whose logs survive a
// case that fails, the programs, clients, and patience. Every helper ends the test when it cannot
// do what it is for. What a suite's own world is made of stays with the suite.
package suite

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

// building is how long the parts may take that no cache holds.
const building = 20 * time.Minute

// Start starts a cluster, in a Folder mostly, and closes it with the test.
func Start(t *testing.T, cfg cluster.Config) *cluster.Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), building)
	defer cancel()
	c := must.Get(cluster.Start(ctx, cfg))(t)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Folder is a temporary folder that is removed when the test has passed.
func Folder(t *testing.T, name string) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "fairlead-"+name+"-"))(t) //nolint:usetesting // that one is always removed
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of all parts: %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

// Build builds programs of this repository into a folder. Without packages it is Fairlead alone,
// whose file it returns.
func Build(t *testing.T, dir string, packages ...string) (fairlead string) {
	t.Helper()
	const module = "github.com/fairlead-proxy/fairlead/"
	args := []string{"build", "-o", dir + "/", module + "cmd/fairlead"}
	for _, p := range packages {
		args = append(args, module+p)
	}
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	return filepath.Join(dir, "fairlead")
}

// Tool is the file of a part that package tools knows.
func Tool(t *testing.T, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), building)
	defer cancel()
	return must.Get(tools.Path(ctx, tools.Config{Progress: os.Stderr}, name))(t)
}

// Eventually asks until ok says yes, and returns how long that took. After most it ends the test
// with the last answer.
func Eventually(t *testing.T, most time.Duration, what string, ok func() (bool, string)) time.Duration {
	t.Helper()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond) // asking costs less than a millisecond mostly, and some bounds are tenths of a second
	defer tick.Stop()
	for {
		done, last := ok()
		if done {
			return time.Since(begun)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %s still not: %s: %s", most, what, last)
		case <-tick.C:
		}
	}
}

// Cases share a world.
type Cases[W any] []struct {
	Name string
	Run  func(*testing.T, W)
}

// Run runs them one after the other.
func (c Cases[W]) Run(t *testing.T, w W) {
	t.Helper()
	for _, one := range c {
		t.Run(one.Name, func(t *testing.T) { one.Run(t, w) })
	}
}

// Beside runs them at the same time, once the test that calls it has come to its end.
func (c Cases[W]) Beside(t *testing.T, w W) {
	t.Helper()
	for _, one := range c {
		t.Run(one.Name, func(t *testing.T) {
			t.Parallel()
			one.Run(t, w)
		})
	}
}

// Pause lets time pass.
func Pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal("the test has ended")
	}
}

// Answer is what a command left behind.
type Answer struct {
	// Out and Errs are what it wrote to standard output and standard error.
	Out, Errs string
	// Code is its exit code.
	Code int
}

// Run runs a command to its end, whatever that is.
func Run(t *testing.T, cmd *exec.Cmd, stdin string) Answer {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || !exit.Exited()) {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out.String(), errs.String())
	}
	return Answer{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// TLS is how a user reaches an endpoint.
func TLS(t *testing.T, e cluster.Endpoint, cr cluster.Credentials) *tls.Config {
	t.Helper()
	c := &tls.Config{RootCAs: Pool(t, e.CAFile), MinVersion: tls.VersionTLS12}
	if cr.Pair.CertFile != "" {
		c.Certificates = []tls.Certificate{must.Get(tls.LoadX509KeyPair(cr.Pair.CertFile, cr.Pair.KeyFile))(t)}
	}
	return c
}

// Pool are the certificates of a file.
func Pool(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	return must.Get(certutil.NewPool(file))(t)
}

// Client is an HTTP client of an endpoint, as a user with a certificate or a token. It follows no
// redirect and asks for no compression of its own accord.
func Client(t *testing.T, e cluster.Endpoint, cr cluster.Credentials) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: TLS(t, e, cr), ForceAttemptHTTP2: true, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	var rt http.RoundTripper = transport
	if cr.Token != "" {
		rt = bearer{cr.Token, rt}
	}
	return &http.Client{Transport: rt, Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// bearer adds a token to every request.
type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// Token is one of a ServiceAccount.
func Token(t *testing.T, core kubernetes.Interface, namespace, name string) string {
	t.Helper()
	r := must.Get(core.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(t)
	return r.Status.Token
}

// Commit names what is tested, for figures that are kept.
func Commit(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(string(must.Get(exec.CommandContext(t.Context(), "git", "describe", "--always", "--dirty").Output())(t)))
}

// Put replaces a file in one step, as deployers do.
func Put[T ~string | ~[]byte](t *testing.T, file string, data T) {
	t.Helper()
	fresh := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".tmp")
	must.Do(t, os.WriteFile(fresh, []byte(data), 0o600))
	must.Do(t, os.Rename(fresh, file))
}
