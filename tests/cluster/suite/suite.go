//go:build e2e

// Package suite is what the suites with real programs share: a cluster whose logs are kept after a
// failure, the programs, clients, and timeouts. Every helper ends the test if it fails. What is
// specific to a suite stays in that suite.
package suite

import (
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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clienttransport "k8s.io/client-go/transport"
	certutil "k8s.io/client-go/util/cert"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

const building = 20 * time.Minute // limits the build of programs that no cache holds

// Start starts a cluster, usually in a Folder, and closes it with the test.
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

// Folder is a temporary folder that is kept if the test fails.
func Folder(t *testing.T, name string) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "fairlead-"+name+"-"))(t) //nolint:usetesting // that one is always removed
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of all processes: %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

// Build builds Fairlead, and other packages of this repository, into a folder, and returns Fairlead's file.
func Build(t *testing.T, dir string, packages ...string) (fairlead string) {
	t.Helper()
	const module = "github.com/fairlead-proxy/fairlead/"
	args := []string{"build", "-o", dir + "/", module + "cmd/fairlead"}
	for _, p := range packages {
		args = append(args, module+p)
	}
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	must.Be(t, err == nil, "building: %v\n%s", err, out)
	return filepath.Join(dir, "fairlead")
}

// Tool returns the file of a program that package tools can build.
func Tool(t *testing.T, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), building)
	defer cancel()
	return must.Get(tools.Path(ctx, tools.Config{Progress: os.Stderr}, name))(t)
}

// Eventually calls ok until it returns true, and returns how long that took. After most it ends the
// test with the last answer.
func Eventually(t *testing.T, most time.Duration, what string, ok func() (bool, string)) time.Duration {
	t.Helper()
	begun, last := time.Now(), ""
	const every = 20 * time.Millisecond // a call usually costs less than a millisecond, and some bounds are tenths of a second
	late := wait.PollUntilContextTimeout(t.Context(), every, most, true, func(context.Context) (done bool, _ error) {
		done, last = ok()
		return done, nil
	})
	must.Be(t, late == nil, "after %s still not: %s: %s", most, what, last)
	return time.Since(begun)
}

// Cases share a world.
type Cases[W any] []struct {
	Name string
	Run  func(*testing.T, W)
}

// Run runs them one after another.
func (c Cases[W]) Run(t *testing.T, w W) {
	t.Helper()
	for _, one := range c {
		t.Run(one.Name, func(t *testing.T) { one.Run(t, w) })
	}
}

// Beside runs them in parallel, after the calling test has returned.
func (c Cases[W]) Beside(t *testing.T, w W) {
	t.Helper()
	for _, one := range c {
		t.Run(one.Name, func(t *testing.T) {
			t.Parallel()
			one.Run(t, w)
		})
	}
}

// Pause waits for d.
func Pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal("the test has ended")
	}
}

// Answer is the result of a command.
type Answer struct {
	Out, Errs string // its standard output and standard error
	Code      int    // its exit code
}

// Run runs a command and returns its result, with any exit code.
func Run(t *testing.T, cmd *exec.Cmd, stdin string) Answer {
	t.Helper()
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || !exit.Exited()) {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out.String(), errs.String())
	}
	return Answer{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// TLS returns a user's TLS configuration for an endpoint.
func TLS(t *testing.T, e cluster.Endpoint, cr cluster.Credentials) *tls.Config {
	t.Helper()
	c := &tls.Config{RootCAs: Pool(t, e.CAFile), MinVersion: tls.VersionTLS12}
	if cr.Pair.CertFile != "" {
		c.Certificates = []tls.Certificate{must.Get(tls.LoadX509KeyPair(cr.Pair.CertFile, cr.Pair.KeyFile))(t)}
	}
	return c
}

// Pool returns a pool with the certificates of a file.
func Pool(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	return must.Get(certutil.NewPool(file))(t)
}

// Client is an HTTP client of an endpoint, with a user's certificate or token. It follows no
// redirect, and requests no compression by default.
func Client(t *testing.T, e cluster.Endpoint, cr cluster.Credentials) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: TLS(t, e, cr), ForceAttemptHTTP2: true, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	var rt http.RoundTripper = transport
	if cr.Token != "" {
		rt = clienttransport.NewBearerAuthRoundTripper(cr.Token, rt)
	}
	return &http.Client{Transport: rt, Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Token returns a token of a ServiceAccount, for a day: longer than any run.
func Token(t *testing.T, core kubernetes.Interface, namespace, name string) string {
	t.Helper()
	day := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(24 * 60 * 60))}}
	r := must.Get(core.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, day, metav1.CreateOptions{}))(t)
	return r.Status.Token
}

// Commit names the tested commit, for recorded figures.
func Commit(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(string(must.Get(exec.CommandContext(t.Context(), "git", "describe", "--always", "--dirty").Output())(t)))
}

// Put replaces a file atomically, as deployment tools do.
func Put[T ~string | ~[]byte](t *testing.T, file string, data T) {
	t.Helper()
	fresh := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".tmp")
	must.Do(t, os.WriteFile(fresh, []byte(data), 0o600))
	must.Do(t, os.Rename(fresh, file))
}
