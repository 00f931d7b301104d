//go:build e2e

package rotation

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// beat is the ConfigMap that is read and watched at the local apiserver.
const beat = "beat"

// world is one cluster that all lanes share, and the request-header CAs that its servers trust.
type world struct {
	*cluster.Cluster

	binary   string // Fairlead
	core     kubernetes.Interface
	services aggregator.Interface
	// frontCAs sign what kube-apiserver and the extension servers take for a front proxy: both of them, so that Fairlead's pair can
	// move from one to the other.
	frontCAs [2]*pki.CA
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // the parts may have to be built first
	defer cancel()
	dir, err := os.MkdirTemp("", "fairlead-rotation-") //nolint:usetesting // the logs are what one needs when a case fails
	if err != nil {
		t.Fatal(err)
	}
	w := &world{frontCAs: [2]*pki.CA{pki.NewCA("front-proxy-ca-1"), pki.NewCA("front-proxy-ca-2")}}
	front := filepath.Join(dir, "front-proxy-ca.crt")
	cert, key := writePair(t, filepath.Join(dir, "aggregator"), w.frontCAs[0].Issue(pki.Leaf{CommonName: "kube-aggregator"}))
	writeFile(t, front, slices.Concat(w.frontCAs[0].PEM(), w.frontCAs[1].PEM()))
	w.Cluster, err = cluster.Start(ctx, cluster.Config{Dir: dir, APIServerArgs: []string{
		"--requestheader-client-ca-file=" + front, "--requestheader-allowed-names=kube-aggregator,fairlead",
		"--proxy-client-cert-file=" + cert, "--proxy-client-key-file=" + key,
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("logs of all parts: %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	w.binary = filepath.Join(dir, "fairlead")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "../../cmd/fairlead", "../../cmd/kubectl-fairlead").CombinedOutput(); err != nil {
		t.Fatalf("building fairlead: %v\n%s", err, out)
	}
	rc := w.Endpoint().RESTConfig(w.Admin())
	if w.core, err = kubernetes.NewForConfig(rc); err != nil {
		t.Fatal(err)
	}
	if w.services, err = aggregator.NewForConfig(rc); err != nil {
		t.Fatal(err)
	}
	w.object(t, beat)
	return w
}

// object makes a ConfigMap in the namespace default.
func (w *world) object(t *testing.T, name string) {
	t.Helper()
	_, err := w.core.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// frontPool is what an extension server verifies front proxies with.
func (w *world) frontPool() *x509.CertPool {
	pool := w.frontCAs[0].Pool()
	pool.AddCert(w.frontCAs[1].Certificate)
	return pool
}

// eventually asks until ok says yes, and returns how long that took. It fails after the limit.
func eventually(t *testing.T, limit time.Duration, what string, ok func() (bool, string)) time.Duration {
	t.Helper()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		done, last := ok()
		if done {
			return time.Since(begun)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting %s until %s: %s", limit, what, last)
		case <-tick.C:
		}
	}
}

// dwell lets the load go on for a while.
func dwell(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal("the test has ended")
	}
}

// writeFile replaces a file in one step.
func writeFile(t *testing.T, file string, data []byte) {
	t.Helper()
	tmp := file + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, file); err != nil {
		t.Fatal(err)
	}
}

// writePair writes the files <base>.crt and <base>.key as careless tools do: in place, and the key long before its certificate.
func writePair(t *testing.T, base string, pair *pki.Pair) (cert, key string) {
	t.Helper()
	cert, key = base+".crt", base+".key"
	if err := os.WriteFile(key, pair.KeyPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	dwell(t, 50*time.Millisecond)
	if err := os.WriteFile(cert, pair.CertPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// volume is a folder that changes as a kubelet changes a mounted Secret: all files at once, by a symlink.
type volume struct {
	dir  string
	turn int
}

func (v *volume) write(t *testing.T, files map[string][]byte) {
	t.Helper()
	v.turn++
	real := fmt.Sprintf("..%d", v.turn)
	if err := os.MkdirAll(filepath.Join(v.dir, real), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(v.dir, real, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fresh := filepath.Join(v.dir, "..data_tmp")
	if err := os.Symlink(real, fresh); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, filepath.Join(v.dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if v.turn > 1 {
		_ = os.RemoveAll(filepath.Join(v.dir, fmt.Sprintf("..%d", v.turn-1)))
		return
	}
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(v.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}
