package main

import (
	"context"
	"crypto/tls"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

const (
	masters = "bench-masters" // the group of the cluster's administrators
	// localPath is an object in kube-apiserver, as large as the extension server's.
	localPath = "/api/v1/namespaces/default/configmaps/bench"
	tokenSize = 900 // the size of a service account's token
)

// token returns the user's. It is one of kube-apiserver's static ones, so that authentication costs a TokenReview and
// little else.
func token() string { return "token-" + strings.Repeat("x", tokenSize-len("token-")) }

// writeToken writes kube-apiserver's file, with the groups of a service account.
func writeToken(file string) {
	const user = "system:serviceaccount:bench:user,uid,\"system:serviceaccounts,system:serviceaccounts:bench\"\n"
	try.Do(os.WriteFile(file, []byte(token()+","+user), 0o600))
}

// proven returns the TLS configuration of a user with a certificate.
func (w *world) proven(user string, groups ...string) *tls.Config {
	pair := try.Get(w.PKI.Client.Issue("bench-"+user, cluster.Leaf{User: user, Groups: groups}))
	tc := w.tls.Clone()
	tc.Certificates = []tls.Certificate{try.Get(tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile))}
	return tc
}

// grant allows every user the requests of the scenarios by RBAC, as in any cluster: no user here is in system:masters.
func (w *world) grant(ctx context.Context) {
	core := try.Get(kubernetes.NewForConfig(w.Endpoint().RESTConfig(w.Admin())))
	read := []string{"get", "list", "watch"}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "bench"}, Rules: []rbacv1.PolicyRule{
		{Verbs: append(read, "create"), APIGroups: []string{"*"}, Resources: []string{"objects"}},
		{Verbs: read, APIGroups: []string{""}, Resources: []string{"configmaps"}},
	}}
	try.Get(core.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}))
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "bench"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:authenticated"}},
	}
	try.Get(core.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}))
	const overhead = 330 // what kube-apiserver adds to a ConfigMap's data
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "bench"}, Data: map[string]string{"data": strings.Repeat("x", objectSize-overhead)}}
	try.Get(core.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{}))
}
