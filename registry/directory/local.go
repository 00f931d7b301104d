package directory

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry/builtin"
)

// Local registers the group-versions of the local apiserver, as kube-apiserver does with its autoregister controllers
// (kube-aggregator pkg/controllers/autoregister, kubernetes pkg/controlplane/controller/crdregistration). It asks for
// the legacy list of groups, which has only names and versions and is a fiftieth of the aggregated document.
type Local struct {
	groups func(context.Context) (*metav1.APIGroupList, error)
	log    *slog.Logger
	begun  time.Time
	made   map[types.NamespacedName]runtime.Object // as last served
}

// localInterval is how often the local apiserver is asked. Its group-versions are routed to it whether or not they are
// registered: only listings and the report of shadowed groups depend on this.
const localInterval = 10 * time.Second

// localAgain is the same until it has answered: listings lack them before. Later failures change nothing.
const localAgain = 250 * time.Millisecond

// NewLocal returns what registers those of the apiserver that c connects to.
func NewLocal(c *rest.Config, log *slog.Logger) (*Local, error) {
	c = rest.CopyConfig(c)
	c.Timeout = localInterval
	client, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("making discovery client of the local apiserver: %w", err)
	}
	client.UseLegacyDiscovery = true
	return &Local{groups: client.ServerGroupsWithContext, log: log, begun: time.Now()}, nil
}

// Run calls serve with the APIServices when they change, until ctx ends. Without an apiserver they stay.
func (l *Local) Run(ctx context.Context, serve func(map[types.NamespacedName]runtime.Object)) error {
	failing := false
	for {
		list, err := l.groups(ctx)
		if err == nil && !slices.ContainsFunc(list.Groups, func(g metav1.APIGroup) bool {
			return g.Name != "" && g.Name != apiregistrationv1.GroupName
		}) {
			// It has just started, and names only the group of the APIServices.
			err = errors.New("the local apiserver has not read its APIServices yet")
		}
		wait := localInterval
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !failing:
			l.log.Warn("asking the local apiserver for its groups, the last ones are kept", "err", err)
		case err == nil:
			if now := l.objects(list); l.made == nil || !maps.Equal(now, l.made) {
				l.made = now
				serve(now)
			}
		}
		if failing = err != nil; l.made == nil {
			wait = localAgain
		}
		latest.Sleep(ctx, wait)
	}
}

// objects makes the APIServices of a list of groups. The same group-version is the same pointer.
func (l *Local) objects(list *metav1.APIGroupList) map[types.NamespacedName]runtime.Object {
	made := make(map[types.NamespacedName]runtime.Object, len(l.made))
	for _, g := range list.Groups {
		if g.Name == apiregistrationv1.GroupName {
			continue // it has no APIService: no aggregator registers itself
		}
		for _, v := range g.Versions {
			name := types.NamespacedName{Name: v.Version + "." + g.Name}
			if made[name] = l.made[name]; made[name] != nil {
				continue
			}
			group, version, known := builtin.Priorities(schema.GroupVersion{Group: g.Name, Version: v.Version})
			automanaged := map[bool]string{true: "onstart", false: "true"}[known]
			made[name] = &apiregistrationv1.APIService{
				ObjectMeta: metav1.ObjectMeta{
					Name: name.Name, Labels: map[string]string{Automanaged: automanaged},
					UID:               uidOf("APIService " + name.Name),
					CreationTimestamp: metav1.NewTime(l.begun.Truncate(time.Second)),
				},
				Spec: apiregistrationv1.APIServiceSpec{
					Group: g.Name, Version: v.Version, GroupPriorityMinimum: group, VersionPriority: version,
				},
			}
		}
	}
	return made
}

// Automanaged is kube-aggregator's label for APIServices that it registered itself.
const Automanaged = "kube-aggregator.kubernetes.io/automanaged"

// uidOf makes a UUID from a name (RFC 9562 §5.8, version 8: custom).
func uidOf(name string) types.UID {
	return types.UID(uuid.NewHash(sha256.New(), uuid.Nil, []byte(name), 8).String())
}

// shown is one immutable state of the objects that are not in the table.
type shown struct {
	maps       map[types.NamespacedName]*corev1.ConfigMap
	roles      map[string]*rbacv1.ClusterRole // by name
	bindings   []*rbacv1.ClusterRoleBinding   // in order of file
	generation uint64                         // changes whenever the roles or bindings do
	read       bool                           // the directory has been read
	superseded chan struct{}                  // closed once a newer state is stored
}

// Superseded implements the state of latest.Of.
func (s *shown) Superseded() <-chan struct{} { return s.superseded }

func newShown() *shown {
	return &shown{
		maps: make(map[types.NamespacedName]*corev1.ConfigMap), roles: make(map[string]*rbacv1.ClusterRole),
		superseded: make(chan struct{}),
	}
}

func (d *Directory) show(now *shown) {
	old := d.shown.Load()
	now.read, now.generation = true, old.generation
	if !old.read || !maps.Equal(old.roles, now.roles) || !slices.Equal(old.bindings, now.bindings) {
		now.generation++
	}
	d.shown.Store(now)
	close(old.superseded) // after the store: readers that wake up must find the new state
}

// Roles returns the ClusterRoles by name, the ClusterRoleBindings, and a number that changes with them; read-only.
func (d *Directory) Roles() (map[string]*rbacv1.ClusterRole, []*rbacv1.ClusterRoleBinding, uint64) {
	now := d.shown.Load()
	return now.roles, now.bindings, now.generation
}

// take keeps an object that is not for the table. It reports false for one that is.
func (s *shown) take(o runtime.Object) bool {
	switch o := o.(type) {
	case *corev1.ConfigMap:
		s.maps[types.NamespacedName{Namespace: o.Namespace, Name: o.Name}] = o
	case *rbacv1.ClusterRole:
		s.roles[o.Name] = o
	case *rbacv1.ClusterRoleBinding:
		s.bindings = append(s.bindings, o)
	case *corev1.Secret: // allowed in manifests, but unused here
	default:
		return false
	}
	return true
}

// Watch watches one ConfigMap until ctx ends. It calls f from one goroutine, with nil if the ConfigMap does not exist.
func (d *Directory) Watch(ctx context.Context, namespace, name string, f func(*corev1.ConfigMap)) error {
	var last *corev1.ConfigMap
	notified := false
	for state := range latest.Of(ctx, d.shown.Load, nil) {
		now := state.maps[types.NamespacedName{Namespace: namespace, Name: name}]
		if state.read && (!notified || now != last) {
			f(now)
			last, notified = now, true
		}
	}
	return ctx.Err()
}
