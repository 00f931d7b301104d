//go:build e2e

package incidents

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/relay"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func own() []row {
	return []row{
		{
			name: "no SubjectAccessReviews", want: "^Users without system:masters get 503.* create subjectaccessreviews", alerts: "FairleadDown",
			more: map[string]string{"explain " + widgets("well") + " --as=jane": "subjectaccessreviews"},
			set: func(t *testing.T, w *world) *incident {
				return w.without(t, "requests", "subjectaccessreviews", w.serve(t, "requests"))
			},
		},
		{
			name: "no TokenReviews", want: "^Users with tokens get 503.* create tokenreviews", alerts: "FairleadDown",
			set: func(t *testing.T, w *world) *incident {
				return w.without(t, "tokens", "tokenreviews", w.serve(t, "tokens"))
			},
		},
		{name: "one of two replicas has no apiserver", want: "^This replica takes no requests: local-apiserver", alerts: "FairleadLocalAPIServerDown", set: cutOff},
		{
			name: "authentication ConfigMap forbidden", want: "^This replica takes no requests: authentication-configmap.*extension-apiserver-authentication", alerts: "FairleadNotReady",
			set: func(t *testing.T, w *world) *incident {
				f := w.serve(t, "names")
				return &incident{
					fronts: []*cluster.Front{f},
					start: func(t *testing.T) {
						w.kubectl.Run(t, "delete", "rolebinding", "-n", "kube-system", "fairlead-authentication-reader-names")
						must.Do(t, f.Part.Restart(t.Context()))
					},
					mend: func(t *testing.T) { w.account(t, "names") },
				}
			},
		},
		{name: "authentication ConfigMap broken", want: "extension-apiserver-authentication", alerts: "FairleadReloadFailing", set: nameless},
		{name: "kubeconfig's certificate expired", want: "kubeconfig", alerts: "FairleadCertificateExpiring", lasts: 25 * time.Minute, set: refused},
		{name: "clock a day behind", want: `clock`, alerts: "FairleadCheckFailing", set: yesterday},
		{name: "audit log's disk full", want: "no space left on device", alerts: "FairleadAuditLost", set: full},
		{name: "few descriptors", want: "descriptors", alerts: "FairleadCheckFailing", set: narrow},
	}
}

// cutOff takes the only apiserver from the replica that is asked. The other one has it.
func cutOff(t *testing.T, w *world) *incident {
	r := must.Get(relay.Start(t.Context(), strings.TrimPrefix(w.Endpoint().URL, "https://")))(t)
	first := w.serve(t, "first")
	second := w.serveAt(t, cluster.Endpoint{URL: "https://" + r.Address, CAFile: w.PKI.Serving.CertFile}, "second")
	ask := []string{"/readyz"} // as a balancer, which sends users to the other one
	return &incident{fronts: []*cluster.Front{second, first}, paths: ask, start: func(*testing.T) { r.Cut(true) }, mend: func(*testing.T) { r.Cut(false) }}
}

// without takes a right from an account.
func (w *world) without(t *testing.T, account, resource string, fronts ...*cluster.Front) *incident {
	t.Helper()
	return &incident{
		fronts: fronts,
		start: func(t *testing.T) {
			must.Do(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
				role, err := w.core.RbacV1().ClusterRoles().Get(t.Context(), "system:fairlead-"+account, metav1.GetOptions{})
				must.Do(t, err)
				for i := range role.Rules {
					if role.Rules[i].Resources[0] == resource {
						role.Rules = slices.Delete(role.Rules, i, i+1)
						break
					}
				}
				_, err = w.core.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{})
				return err
			}))
		},
		mend: func(t *testing.T) { w.account(t, account) },
	}
}

// nameless breaks the ConfigMap of a cluster of its own, because all Fairleads of a cluster read
// it. kube-apiserver cannot read it either, and does not repair it.
func nameless(t *testing.T, shared *world) *incident {
	w := *shared
	w.Cluster = suite.Start(t, cluster.Config{Dir: suite.Folder(t, "nameless"), APIServerArgs: []string{"--advertise-address=10.79.0.1"}})
	w.prepare(t)
	w.lasting(t, 0)
	names := func(user string) {
		patch := must.Get(json.Marshal(map[string]any{"data": map[string]string{"requestheader-username-headers": user}}))(t)
		must.Get(w.core.CoreV1().ConfigMaps("kube-system").Patch(t.Context(), "extension-apiserver-authentication", types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	}
	f := w.serve(t, "nameless")
	return &incident{
		fronts: []*cluster.Front{f}, world: &w, paths: []string{"/version"},
		start: func(*testing.T) { names("X-Remote-User") }, mend: func(*testing.T) { names(`["X-Remote-User"]`) }, // it must be a list
	}
}

// refused lets the certificate of Fairlead's kubeconfig expire. Of this one, an alert warns a month before.
func refused(t *testing.T, w *world) *incident {
	w.account(t, "expired")
	issue := func(lasts time.Duration) cluster.Pair {
		return must.Get(w.PKI.Client.Issue("kubeconfig-expired", cluster.Leaf{User: "system:serviceaccount:kube-system:fairlead-expired", NotAfter: time.Now().Add(lasts)}))(t)
	}
	const month = 40 * 24 * time.Hour
	file := filepath.Join(w.Dir(), "account-expired.kubeconfig")
	must.Do(t, w.Endpoint().WriteKubeconfig(file, cluster.Credentials{Pair: issue(month)}))
	f := w.start(t, "expired", "", "--kubeconfig="+file)
	return &incident{fronts: []*cluster.Front{f}, start: func(*testing.T) { issue(-time.Minute) }, mend: func(*testing.T) { issue(month) }}
}

// full is a full disk below the audit log.
func full(t *testing.T, w *world) *incident {
	folder := t.TempDir()
	out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder).CombinedOutput()
	must.Be(t, err == nil, "mounting: %v\n%s", err, out)
	t.Cleanup(func() { _ = exec.Command("umount", "--lazy", folder).Run() })
	policy := filepath.Join(w.Dir(), "audit-policy.yaml")
	suite.Put(t, policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	f := w.serve(t, "audited", "--audit-policy-file="+policy, "--audit-log-path="+filepath.Join(folder, "audit.jsonl"))
	filler := filepath.Join(folder, "filler")
	return &incident{
		fronts: []*cluster.Front{f},
		start: func(*testing.T) {
			_ = os.WriteFile(filler, make([]byte, 16<<20), 0o600) // it fails when the disk is full
		},
		mend: func(t *testing.T) { must.Do(t, os.Remove(filler)) },
	}
}

// narrow lowers the process's limit of open files to little more than it has open. Watches hold
// most of them, so that the number hardly varies.
func narrow(t *testing.T, w *world) *incident {
	f := w.serve(t, "narrow")
	for range 80 {
		c := suite.Client(t, f.Endpoint, w.jane)
		c.Timeout = 0
		watch := must.Get(ask.Open(t.Context(), c, f.Endpoint.URL+widgets("well")+"?watch=true", nil))(t)
		t.Cleanup(func() { _ = watch.Body.Close() })
	}
	limit := func(n int) {
		a := run(t, "prlimit", fmt.Sprintf("--pid=%d", f.Part.PID()), fmt.Sprintf("--nofile=%d:", n))
		must.Be(t, a.Code == 0, "prlimit: %s", a.Errs)
	}
	return &incident{
		fronts: []*cluster.Front{f},
		start: func(t *testing.T) {
			limit(len(must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/fd", f.Part.PID())))(t)) + 4) // for those who ask
		},
		mend: func(*testing.T) { limit(4096) },
	}
}
