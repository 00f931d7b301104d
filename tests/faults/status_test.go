//go:build e2e

package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testStatus lets Fairlead write its own condition, next to the one of kube-apiserver's
// controllers, with only the permissions of the shipped manifests.
func testStatus(t *testing.T, d *door) {
	x := d.w.newDoor(t, "--write-status", "--kubeconfig="+d.w.shippedAccount(t, "base/rbac.yaml", "components/write-status/rbac.yaml"))
	b, servers := x.backend(t, 1)
	is := func(want string) func() bool { return func() bool { return b.written(t) == want } }
	eventually(t, "written as available", is("True"))
	must.Do(t, servers[0].Set(extension.Fault{Kind: extension.Dead}))
	eventually(t, "written as unavailable", is("False"))
	must.Do(t, servers[0].Set())
	eventually(t, "written as available again", is("True"))
	if n := x.scrape()[`fairlead_status_write_total{result="failed"}`]; n > 0 {
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
	const account = "system:serviceaccount:kube-system:fairlead"
	pair := must.Get(w.PKI.Client.Issue("account", cluster.Leaf{User: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}}))(t)
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(file, cluster.Credentials{Pair: pair}))
	return file
}
