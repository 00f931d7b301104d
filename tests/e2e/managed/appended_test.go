//go:build e2e

package managed

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const (
	appendCommand = "kubectl fairlead init --append-authentication-configmap"
	bundleKey     = "requestheader-client-ca-file"
	namesKey      = "requestheader-allowed-names"

	reconciled = 3 * time.Minute // each kube-apiserver writes once a minute, and again after a conflict
)

// TestAppended lets a sample extension server without flags trust Fairlead by the cluster's
// ConfigMap, and looks for what loses the entry.
func TestAppended(t *testing.T) {
	w := newWorld(t, 0)
	w.must(t, "kubectl create namespace wardle; kubectl create namespace managed; kubectl apply -f -", "<<'EOF'\n"+people+"\nEOF")
	w.must(t, w.blocks[1])
	w.must(t, w.blocks[2])
	w.front = w.start(t, "fairlead")
	sample := must.Get(w.StartSampleAPIServer(t.Context()))(t)
	dave := passport{cred: w.issue(t, w.users, "dave", "dev")}
	// The server refuses requests with 401. Once Fairlead's probes have found that out, it does so with 503.
	served := func(t *testing.T, want bool) {
		t.Helper()
		took := suite.Eventually(t, reconciled, fmt.Sprint("served: ", want), func() (bool, string) {
			code, body := w.ask(t, w.front, dave, "GET", flunders, "")
			return want && code == http.StatusOK || !want && (code == http.StatusUnauthorized || code == http.StatusServiceUnavailable), fmt.Sprint(code, " ", body)
		})
		t.Logf("served %t after %s", want, took.Round(time.Second/10))
	}
	ca := string(must.Get(w.core.CoreV1().Secrets("kube-system").Get(t.Context(), "fairlead-ca", metav1.GetOptions{}))(t).Data["tls.crt"])
	trusts := func(t *testing.T, bundle string, names ...string) {
		t.Helper()
		suite.Eventually(t, reconciled, "in the ConfigMap", func() (bool, string) {
			data := w.shared(t).Data
			for _, n := range names {
				if !strings.Contains(data[namesKey], `"`+n+`"`) {
					return false, data[namesKey]
				}
			}
			return strings.Contains(data[bundleKey], bundle), data[bundleKey]
		})
	}
	const fronts, own = "front-proxy-client", "fairlead"
	cluster1 := string(w.PKI.FrontProxy.CA.PEM())

	t.Run("not yet", func(t *testing.T) {
		served(t, false)
		before := w.shared(t).ResourceVersion
		out := w.must(t, appendCommand, "--dry-run")
		check.Same(t, true, strings.Contains(out, "not written (--dry-run)\n  CA \"fairlead-ca-") && w.shared(t).ResourceVersion == before, "--dry-run printed:\n%s", out)
	})
	t.Run("appended", func(t *testing.T) {
		check.Has(t, w.must(t, appendCommand), "extension-apiserver-authentication written\n  CA \"fairlead-ca-")
		served(t, true)
		check.Same(t, "", w.must(t, w.blocks[4], "--allow-loopback-backends"), "what lint reports")
		check.Has(t, w.must(t, appendCommand), "extension-apiserver-authentication unchanged\n")
	})
	t.Run("reconciled", func(t *testing.T) { // kube-apiserver puts its own back once a minute
		w.edit(t, func(data map[string]string) {
			data[bundleKey], data[namesKey], data["note"] = ca, `["`+own+`"]`, "a key that it does not know"
		})
		trusts(t, cluster1, fronts)
		check.Same(t, "", w.shared(t).Data["note"], "what it keeps of other keys")
		trusts(t, ca, own)
		served(t, true)
	})
	t.Run("restarted", func(t *testing.T) {
		must.Do(t, w.APIServers[0].Restart(t.Context()))
		must.Do(t, sample.Restart(t.Context()))
		trusts(t, ca, own)
		served(t, true)
	})
	t.Run("another control plane", func(t *testing.T) { // of another CA, as during a rotation of nodes
		other := must.Get(w.PKI.NewAuthority("other-front-proxy-ca"))(t)
		must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0], "--requestheader-client-ca-file="+other.CertFile, "--requestheader-allowed-names=other-client"))
		trusts(t, string(other.CA.PEM()), "other-client")
		trusts(t, cluster1, fronts)
		trusts(t, ca, own)
		served(t, true)
		w.APIServers[1].Kill()
	})
	t.Run("rotated", func(t *testing.T) { // the kube-apiserver's CA is replaced in its file
		next := must.Get(w.PKI.NewAuthority("next-front-proxy-ca"))(t)
		suite.Put(t, w.PKI.FrontProxy.CertFile, next.CA.PEM())
		trusts(t, string(next.CA.PEM()), fronts)
		trusts(t, ca, own)
		suite.Put(t, w.PKI.FrontProxy.CertFile, cluster1)
		served(t, true)
	})
	t.Run("deleted", func(t *testing.T) { // the one thing that loses it
		must.Do(t, w.core.CoreV1().ConfigMaps("kube-system").Delete(t.Context(), "extension-apiserver-authentication", metav1.DeleteOptions{}))
		trusts(t, cluster1, fronts)
		check.Lacks(t, w.shared(t).Data[bundleKey], ca)
		served(t, false)
		w.must(t, appendCommand)
		served(t, true)
	})
	t.Run("removed", func(t *testing.T) {
		check.Has(t, w.must(t, appendCommand, "--remove"), "removed\n")
		served(t, false)
		if data := w.shared(t).Data; strings.Contains(data[bundleKey], ca) || strings.Contains(data[namesKey], `"`+own+`"`) || !strings.Contains(data[bundleKey], cluster1) {
			t.Errorf("left: %v", data)
		}
	})
}

// shared is the ConfigMap that extension servers without flags read.
func (w *world) shared(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	var m *corev1.ConfigMap
	suite.Eventually(t, soon, "the ConfigMap exists", func() (bool, string) {
		var err error
		m, err = w.core.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	})
	return m
}

func (w *world) edit(t *testing.T, change func(map[string]string)) {
	t.Helper()
	must.Do(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		m := w.shared(t)
		change(m.Data)
		_, err := w.core.CoreV1().ConfigMaps("kube-system").Update(t.Context(), m, metav1.UpdateOptions{})
		return err
	}))
}
