//go:build e2e

package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

const (
	statusLeads  = "fairlead_status_writer_leading"
	statusWrites = `fairlead_status_write_total{result="written"}`
	statusFails  = `fairlead_status_write_total{result="failed"}`
)

// testStatus lets Fairlead write its own condition, next to the one of kube-apiserver's
// controllers, with only the permissions of the shipped manifests.
func testStatus(t *testing.T, d *door) {
	x := d.w.newDoor(t, d.lane, "--write-status", "--kubeconfig="+d.w.shippedAccount(t, "base/rbac.yaml", "components/write-status/rbac.yaml"))
	b, servers := x.backend(t, 1, extension.Config{})
	is := func(want string) func() bool { return func() bool { return b.written(t) == want } }
	set := func(faults ...extension.Fault) { must.Do(t, servers[0].Set(faults...)) }
	t.Run("on change", func(t *testing.T) {
		eventually(t, longest, "written as available", is("True"))
		set(extension.Fault{Kind: extension.Dead})
		eventually(t, longest, "written as unavailable", is("False"))
		set()
		eventually(t, longest, "written as available again", is("True"))
	})
	t.Run("only on change", func(t *testing.T) {
		other, _ := x.backend(t, 1, extension.Config{}) // changes the table
		eventually(t, longest, "the new one is written, too", func() bool { return other.written(t) == "True" })
		suite.Pause(t, time.Second) // until the write is counted, and the metric read
		before := x.scrape()[statusWrites]
		annotate := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/at":%q}}}`, time.Now())
		must.Get(d.w.groups.ApiregistrationV1().APIServices().Patch(t.Context(), b.apiService(), types.MergePatchType, []byte(annotate), metav1.PatchOptions{}))(t)
		suite.Pause(t, 3*time.Second) // longer than the minimum interval of writes
		if n := x.scrape()[statusWrites] - before; n != 0 {
			t.Errorf("%v writes while no verdict changed", n)
		}
	})
	t.Run("survives the loss of the Lease", func(t *testing.T) {
		d.w.stealLease(t)
		eventually(t, longest, "noticed", func() bool { return x.scrape()[statusLeads] == 0 })
		before := x.scrape()[statusWrites]
		set(extension.Fault{Kind: extension.Dead})
		eventually(t, longest, "unavailable", func() bool { return b.unavailable(x) })
		if x.scrape()[statusWrites] != before {
			t.Error("wrote without the Lease")
		}
		eventually(t, 2*longest, "leading again, and written", is("False"))
	})
	if n := x.scrape()[statusFails]; n > 0 {
		t.Errorf("%v writes failed", n)
	}
	log := must.Get(os.ReadFile(x.Part.LogFile()))(t)
	if strings.Contains(string(log), "forbidden") {
		t.Errorf("the shipped permissions do not suffice:\n%s", x.Part.Tail())
	}
}

// written returns the status of Fairlead's condition, or "" without one.
func (b *backend) written(t *testing.T) string {
	t.Helper()
	object := must.Get(b.w.groups.ApiregistrationV1().APIServices().Get(t.Context(), b.apiService(), metav1.GetOptions{}))(t)
	for _, c := range object.Status.Conditions {
		if c.Type == "fairlead.dev/Available" {
			return string(c.Status)
		}
	}
	return ""
}

// shippedAccount applies manifests of deploy/ and returns a kubeconfig of their ServiceAccount.
func (w *world) shippedAccount(t *testing.T, manifests ...string) string {
	t.Helper()
	kubectl := suite.Tool(t, "kubectl")
	admin, file := filepath.Join(t.TempDir(), "admin"), filepath.Join(t.TempDir(), "fairlead")
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(admin, w.Admin()))
	for _, m := range manifests {
		out, err := exec.CommandContext(t.Context(), kubectl, "--kubeconfig", admin, "apply", "-f", filepath.Join("../../deploy", m)).CombinedOutput()
		if err != nil {
			t.Fatalf("applying %s: %v\n%s", m, err, out)
		}
	}
	pair, err := w.PKI.Client.Issue("account", cluster.Leaf{User: "system:serviceaccount:kube-system:fairlead", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}})
	must.Do(t, err)
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(file, cluster.Credentials{Pair: pair}))
	return file
}

// stealLease takes the Lease of the status writer for a while.
func (w *world) stealLease(t *testing.T) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"holderIdentity":"a thief","leaseDurationSeconds":20,"renewTime":%q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
	must.Get(w.core.CoordinationV1().Leases("kube-system").Patch(t.Context(), "fairlead-status", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
}
