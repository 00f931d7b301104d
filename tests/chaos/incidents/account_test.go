//go:build e2e

package incidents

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// users are an ordinary one, and Prometheus.
const users = `
{apiVersion: v1, kind: Namespace, metadata: {name: incidents}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: incidents, name: prometheus}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: incidents-prometheus},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:fairlead-metrics"}, subjects: [{kind: ServiceAccount, namespace: incidents, name: prometheus}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: incidents-jane}, rules: [{apiGroups: ["*"], resources: [widgets], verbs: [get, list, watch]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: incidents-jane},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: incidents-jane}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}]}
`

// renamed makes copies of the shipped account and its rights.
const renamed = `
resources: [%s]
nameSuffix: -%s
patches:
- target: {kind: Service|FlowSchema|PriorityLevelConfiguration|ValidatingAdmission.*}
  patch: '{$patch: delete, apiVersion: v1, kind: any, metadata: {name: any}}'
`

// account makes a copy of Fairlead's ServiceAccount with the shipped rights, or restores it.
func (w *world) account(t *testing.T, name string) {
	t.Helper()
	dir := t.TempDir()
	base := must.Get(filepath.Rel(dir, must.Get(filepath.Abs("../../../deploy/base"))(t)))(t)
	suite.Put(t, filepath.Join(dir, "kustomization.yaml"), fmt.Sprintf(renamed, base, name))
	w.kubectl.Run(t, "apply", "-k", dir)
}

// kubeconfig returns one with a token of that account.
func (w *world) kubeconfig(t *testing.T, e cluster.Endpoint, name string) string {
	t.Helper()
	file := filepath.Join(w.Dir(), "account-"+name+".kubeconfig")
	must.Do(t, e.WriteKubeconfig(file, cluster.Credentials{Token: suite.Token(t, w.core, "kube-system", "fairlead-"+name)}))
	return file
}
