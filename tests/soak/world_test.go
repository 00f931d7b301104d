//go:build e2e

package soak

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

const namespace = "soak"

// nodeAddress is the address that the kube-apiservers advertise: they refuse loopback.
const nodeAddress = "10.79.0.1"

// world is the whole environment: a control plane, groups with their backends, two doors in front,
// and callers.
type world struct {
	*cluster.Cluster

	t       *testing.T // for code before and after the torment
	checker *checker
	journal *slog.Logger
	fronts  *x509.CertPool // verifies front proxies
	kube    []clients      // of each kube-apiserver
	groups  []*group
	doors   [2]*door
	callers []*caller

	mu sync.Mutex // guards what the tormentors change: the fields of groups and sites that say so
}

func raise(t *testing.T, dir string, journal *slog.Logger) *world {
	t.Helper()
	w := &world{t: t, journal: journal, checker: newChecker(journal)}
	go w.checker.keepTime(t.Context())
	fairlead := suite.Build(t, filepath.Join(dir, "bin"))
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServers: 2, APIServerArgs: []string{"--advertise-address=" + nodeAddress}})
	w.fronts = suite.Pool(t, w.PKI.FrontProxy.CertFile)
	for i := range w.APIServers {
		rc := w.EndpointOf(i).RESTConfig(w.Admin())
		rc.Timeout = 5 * time.Second // a stopped kube-apiserver does not answer; the other one may
		w.kube = append(w.kube, clients{must.Get(kubernetes.NewForConfig(rc))(t), must.Get(aggregator.NewForConfig(rc))(t)})
	}
	w.grant(t.Context())
	for i, name := range []string{"alpha", "beta", "gamma"} {
		w.groups = append(w.groups, w.raiseGroup(t.Context(), i, name))
	}
	for i, name := range []string{"a", "b"} {
		w.doors[i] = w.raiseDoor(t.Context(), fairlead, name)
	}
	w.raiseCallers(t.Context())
	w.await(t.Context(), "everything, at the start", w.wrong)
	if v := w.checker.found(); len(v) > 0 {
		t.Fatalf("waiting for everything: %s", v[0].what)
	}
	return w
}

// clients are an administrator's, of one kube-apiserver, past the doors.
type clients struct {
	core   kubernetes.Interface
	groups aggregator.Interface
}

// api calls f with one kube-apiserver after the other until it succeeds: f must be repeatable. It
// gives up after 3 minutes, when a control plane that was broken on purpose should have recovered.
func (w *world) api(ctx context.Context, f func(context.Context, clients) error) error {
	var err error
	n := 0
	ended := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		err = f(ctx, w.kube[n%len(w.kube)])
		n++
		return err == nil, nil
	})
	if ended != nil {
		return fmt.Errorf("asking the cluster: %w (%w)", ended, err)
	}
	return nil
}

func (w *world) grant(ctx context.Context) {
	meta, core := metav1.ObjectMeta{Name: namespace}, w.kube[0].core
	must.Get(core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: meta}, metav1.CreateOptions{}))(w.t)
	must.Get(core.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"alpha.soak.example.com", "beta.soak.example.com", "gamma.soak.example.com"}, Resources: []string{"*"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "watch"}},
	}}, metav1.CreateOptions{}))(w.t)
	must.Get(core.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: namespace},
		Subjects: []rbacv1.Subject{
			{APIGroup: rbacv1.GroupName, Kind: "Group", Name: namespace},
			{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:serviceaccounts:" + namespace},
		},
	}, metav1.CreateOptions{}))(w.t)
	must.Get(core.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: beacon}}, metav1.CreateOptions{}))(w.t)
}
