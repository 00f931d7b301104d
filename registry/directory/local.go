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

// Local registers the group-versions of the local apiserver, as kube-apiserver does with its
// autoregister controllers (kube-aggregator pkg/controllers/autoregister, kubernetes
// pkg/controlplane/controller/crdregistration). It asks for the legacy list of groups, which has
// only names and versions and is a fiftieth of the aggregated document.
type Local struct {
	groups func(context.Context) (*metav1.APIGroupList, error)
	log    *slog.Logger
	begun  time.Time
	made   map[types.NamespacedName]runtime.Object // as last served
}

// localInterval is how often the local apiserver is asked. Its group-versions are routed to it
// whether or not they are registered: only listings and the report of shadowed groups depend on
// this.
const localInterval = 10 * time.Second

// localAgain is the same after a failure: the group-versions of an apiserver that starts later than
// this process are missing in the legacy list of groups until then.
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
	return &Local{
		groups: client.ServerGroupsWithContext,
		log:    log,
		begun:  time.Now(),
	}, nil
}

// Run calls serve with the APIServices when they change, until ctx ends. Without an
// apiserver they stay.
func (l *Local) Run(ctx context.Context, serve func(map[types.NamespacedName]runtime.Object)) error {
	failing := false
	for {
		list, err := l.groups(ctx)
		if err == nil && !slices.ContainsFunc(list.Groups, func(g metav1.APIGroup) bool { return g.Name != "" && g.Name != apiregistrationv1.GroupName }) {
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
		if failing = err != nil; failing {
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
			automanaged := "true"
			group, version, ok := builtin.Priorities(schema.GroupVersion{Group: g.Name, Version: v.Version})
			if ok {
				automanaged = "onstart"
			}
			made[name] = &apiregistrationv1.APIService{
				ObjectMeta: metav1.ObjectMeta{
					Name: name.Name, Labels: map[string]string{Automanaged: automanaged},
					UID: uidOf("APIService " + name.Name), CreationTimestamp: metav1.NewTime(l.begun.Truncate(time.Second)),
				},
				Spec: apiregistrationv1.APIServiceSpec{Group: g.Name, Version: v.Version, GroupPriorityMinimum: group, VersionPriority: version},
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
