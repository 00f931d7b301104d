package apiservices

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	"k8s.io/apiserver/pkg/storage/feature"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	typed "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/apiservices/etcd"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// serveEtcd serves the content of an etcd of its own.
func serveEtcd(t *testing.T) (kv *kubernetes.Client, url string, c typed.APIServiceInterface) {
	t.Helper()
	kv = testserver.RunEtcd(t, nil)
	url = serveFor(t, serverOf(t, kv.Endpoints()...))
	return kv, url, client(t, url, "application/json")
}

// anew starts another server on the same etcd, and waits until it has read it.
func anew(t *testing.T, kv *kubernetes.Client) typed.APIServiceInterface {
	t.Helper()
	c := client(t, serveFor(t, serverOf(t, kv.Endpoints()...)), "application/json")
	ready(t, c)
	return c
}

// serverOf runs a server for an etcd cluster with these members.
func serverOf(t *testing.T, members ...string) *Server {
	t.Helper()
	return must.Get(New(Config{
		Etcd: &etcd.Config{Endpoints: members}, Version: &version.Info{GitVersion: "v1.37.2"},
		Options: protecting("apps"),
		Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.GetVerb() == "create" && a.GetName() == "v1.forbidden.io" {
				return authorizer.DecisionNoOpinion, "not you", nil
			}
			if a.GetVerb() == "unsafe-delete-ignore-read-errors" {
				return authorizer.DecisionNoOpinion, "not this way", nil
			}
			return authorizer.DecisionAllow, "", nil
		}),
	}))(t)
}

// ready waits for the cache, and for etcd's version, without which the cache refuses watch-list: a
// client that asks earlier lists instead.
func ready(t *testing.T, c typed.APIServiceInterface) {
	t.Helper()
	must.Soon(t, time.Minute, "the cache is ready", func() bool {
		_, err := c.List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		return err == nil && feature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress)
	})
}

func TestEtcdIsServed(t *testing.T) {
	_, url, c := serveEtcd(t)
	ready(t, c)
	w := must.Get(c.Watch(t.Context(), metav1.ListOptions{AllowWatchBookmarks: true}))(t)
	defer w.Stop()
	event := func(want watch.EventType) *apiregistrationv1.APIService {
		t.Helper()
		e, ok := <-w.ResultChan()
		for ok && e.Type == watch.Bookmark {
			e, ok = <-w.ResultChan()
		}
		must.Be(t, ok && e.Type == want, "event %v %v, want %s", e.Type, e.Object, want)
		return e.Object.(*apiregistrationv1.APIService)
	}
	made := must.Get(c.Create(t.Context(), remote("v1.a.io", "one"), metav1.CreateOptions{}))(t)
	check.Same(t, true, *made.Spec.Service.Port == 443 && made.UID != "" && made.ResourceVersion != "", "no defaults: %v", made)
	event(watch.Added)
	byURL := object("v1.b.io", nil)
	byURL.Annotations = map[string]string{"fairlead.dev/url": "https://10.0.0.1"}
	must.Get(c.Create(t.Context(), byURL, metav1.CreateOptions{}))(t)
	check.Same(t, 0, len(event(watch.Added).Status.Conditions), "conditions of what is no more available than with a Service")
	made.Spec.VersionPriority = 20
	must.Get(c.Update(t.Context(), made, metav1.UpdateOptions{}))(t)
	check.Same(t, 20, event(watch.Modified).Spec.VersionPriority, "modified")
	fails(t, apierrors.IsConflict, "", check.Err(c.Update(t.Context(), made, metav1.UpdateOptions{})), "update of an old revision")
	o, err := c.Patch(t.Context(), "v1.a.io", types.MergePatchType, []byte(`{"status":{"conditions":[{"type":"Available","status":"False","reason":"X"}]},"spec":{"versionPriority":30}}`), metav1.PatchOptions{}, "status")
	check.Same(t, true, err == nil && o.Spec.VersionPriority == 20 && o.Status.Conditions[0].Reason == "X", "patch of the status: %v %v", err, o)
	event(watch.Modified)
	_, body := get(t, url+"/apis/apiregistration.k8s.io/v1/apiservices", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	check.Has(t, body, `"cells":["v1.a.io","x/one","False (X)"`)
	// Since v1.37 a gate that is on allows it; it is a verb of its own.
	unsafe := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}
	fails(t, apierrors.IsForbidden, "not this way", c.Delete(t.Context(), "v1.a.io", unsafe), "an unsafe deletion")
	// There is no garbage collector here: a deletion completes at once with any propagation policy.
	for _, p := range []metav1.DeletionPropagation{metav1.DeletePropagationForeground, metav1.DeletePropagationBackground, metav1.DeletePropagationOrphan} {
		must.Do(t, c.Delete(t.Context(), "v1.a.io", metav1.DeleteOptions{PropagationPolicy: &p}))
		event(watch.Deleted)
		fails(t, apierrors.IsNotFound, "", check.Err(c.Get(t.Context(), "v1.a.io", metav1.GetOptions{})), "after %s", p)
		must.Get(c.Create(t.Context(), object("v1.a.io", nil), metav1.CreateOptions{}))(t)
		event(watch.Added)
	}
}

// A patch that creates an object needs the right to create.
func TestApply(t *testing.T) {
	_, _, c := serveEtcd(t)
	apply := func(name, manager, spec string, o metav1.PatchOptions) (*apiregistrationv1.APIService, error) {
		o.FieldManager = manager
		v, group, _ := strings.Cut(name, ".")
		return c.Patch(t.Context(), name, types.ApplyPatchType, []byte(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"`+name+`"},"spec":{"version":"`+v+`","group":"`+group+`",`+spec+`}}`), o)
	}
	const spec = `"groupPriorityMinimum":100,"versionPriority":10`
	fails(t, apierrors.IsForbidden, "", check.Err(apply("v1.forbidden.io", "me", spec, metav1.PatchOptions{})), "creating without permission")
	must.Get(apply("v1.a.io", "me", spec, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}))(t)
	fails(t, apierrors.IsNotFound, "", check.Err(c.Get(t.Context(), "v1.a.io", metav1.GetOptions{})), "after a dry run")
	o, err := apply("v1.a.io", "me", spec, metav1.PatchOptions{})
	must.Be(t, err == nil && len(o.ManagedFields) == 1 && o.ManagedFields[0].Manager == "me", "apply: %v %v", err, o)
	fails(t, apierrors.IsConflict, "", check.Err(apply("v1.a.io", "other", `"groupPriorityMinimum":200,"versionPriority":10`, metav1.PatchOptions{})), "apply over another's field")
	_, err = apply("v1.a.io", "me", spec+`,"color":"blue"`, metav1.PatchOptions{FieldValidation: "Strict"})
	check.Same(t, true, apierrors.IsBadRequest(err) || apierrors.IsInternalError(err), "unknown field: %v", err)
}

func TestProtectedGroupsAreRefused(t *testing.T) {
	kv, _, c := serveEtcd(t)
	fails(t, apierrors.IsForbidden, `group "apps" is protected`, check.Err(c.Create(t.Context(), remote("v1.apps", "mine"), metav1.CreateOptions{})), "a remote APIService")
	o, err := c.Create(t.Context(), object("v1.apps", nil), metav1.CreateOptions{})
	must.Be(t, err == nil && o.Status.Conditions[0].Reason == "Local", "a Local APIService: %v %v", err, o)
	o.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "x", Name: "y"}
	fails(t, apierrors.IsForbidden, "", check.Err(c.Update(t.Context(), o, metav1.UpdateOptions{})), "an update to remote")
	o.Spec.Service, o.Annotations = nil, map[string]string{"fairlead.dev/url": "https://10.0.0.1"}
	fails(t, apierrors.IsForbidden, "", check.Err(c.Update(t.Context(), o, metav1.UpdateOptions{})), "an update to remote by annotation")
	// One that a kube-apiserver on this etcd has stored can be deleted, finalizers and all.
	must.Get(kv.Put(t.Context(), "/registry/apiregistration.k8s.io/apiservices/v2.apps", `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v2.apps","uid":"2","finalizers":["a.io/b"]},`+
		`"spec":{"group":"apps","version":"v2","groupPriorityMinimum":1,"versionPriority":1,"insecureSkipTLSVerify":true,"service":{"namespace":"x","name":"y","port":443}}}`))(t)
	must.Do(t, c.Delete(t.Context(), "v2.apps", metav1.DeleteOptions{}))
	must.Get(c.Patch(t.Context(), "v2.apps", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))(t)
}

// An unreadable object is reported, and the others are served.
func TestCorruptObjects(t *testing.T) {
	kv, _, c := serveEtcd(t)
	ready(t, c)
	w := must.Get(c.Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	put := func(name, value string) {
		t.Helper()
		must.Get(kv.Put(t.Context(), "/registry/apiregistration.k8s.io/apiservices/"+name, value))(t)
		e := <-w.ResultChan()
		must.Be(t, e.Type == watch.Added, "%v", e)
	}
	put("v1.noise.io", "\x00\x01\x02")
	put("v1.secret.io", "k8s:enc:secretbox:v1:key1:\x00\x01\x02") // by kube-apiserver's --encryption-provider-config
	put("v1.other.io", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"v1.other.io"}}`)
	put("v1.long.io", `{"apiVersion":"`+strings.Repeat("x", 1<<18)+`/v1","kind":"Pod","metadata":{"name":"v1.other.io"}}`)
	put("v1.astray.io", `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.elsewhere.io"},"spec":{"group":"elsewhere.io","version":"v1"}}`)
	must.Get(c.Create(t.Context(), object("v1.sound.io", nil), metav1.CreateOptions{}))(t)
	<-w.ResultChan()
	put("sub/v1.sound.io", `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.sound.io"},"spec":{"group":"elsewhere.io","version":"v1"}}`)
	look := func(c typed.APIServiceInterface) {
		t.Helper()
		all := must.Get(c.List(t.Context(), metav1.ListOptions{}))(t)
		for _, o := range all.Items {
			reason := o.Status.Conditions[0].Reason
			check.Same(t, true, len(o.Status.Conditions[0].Message) <= 2<<10, "%s: a message of %d bytes", o.Name, len(o.Status.Conditions[0].Message))
			if o.Name == "v1.secret.io" {
				check.Has(t, o.Status.Conditions[0].Message, "encrypted")
			}
			check.Same(t, map[bool]string{true: "Local", false: etcd.Corrupt}[o.Name == "v1.sound.io"], reason, "%s: reason", o.Name)
		}
		check.Same(t, 7, len(all.Items), "objects: %v", names(all))
	}
	look(c)
	look(anew(t, kv))
	fails(t, apierrors.IsInvalid, "", check.Err(c.Patch(t.Context(), "v1.noise.io", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})), "partial patch")
	whole := object("v1.noise.io", nil)
	o := must.Get(c.Get(t.Context(), "v1.noise.io", metav1.GetOptions{}))(t)
	whole.ResourceVersion, whole.CreationTimestamp = o.ResourceVersion, o.CreationTimestamp
	must.Get(c.Update(t.Context(), whole, metav1.UpdateOptions{}))(t)
	for _, name := range []string{"v1.other.io", "v1.astray.io"} {
		must.Do(t, c.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
}

// After a compaction, a client with an old revision must list again.
func TestCompaction(t *testing.T) {
	kv, _, c := serveEtcd(t)
	o := must.Get(c.Create(t.Context(), object("v1.a.io", nil), metav1.CreateOptions{}))(t)
	old := o.ResourceVersion
	for i := range int32(3) {
		o.Spec.VersionPriority = 20 + i
		o = must.Get(c.Update(t.Context(), o, metav1.UpdateOptions{}))(t)
	}
	now := must.Get(strconv.ParseInt(o.ResourceVersion, 10, 64))(t)
	must.Get(kv.Compact(t.Context(), now))(t)
	later := anew(t, kv)
	w := must.Get(later.Watch(t.Context(), metav1.ListOptions{ResourceVersion: old}))(t)
	defer w.Stop()
	check.Same(t, "ERROR Expired", next(t, w), "watch from an old revision")
	exact := metav1.ListOptions{ResourceVersion: old, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	fails(t, apierrors.IsResourceExpired, "", check.Err(later.List(t.Context(), exact)), "list of an old revision")
}

// From a revision that etcd has not reached, as after a restore, a client must list again.
func TestFuture(t *testing.T) {
	_, _, c := serveEtcd(t)
	o := must.Get(c.Create(t.Context(), object("v1.a.io", nil), metav1.CreateOptions{}))(t)
	future := metav1.ListOptions{ResourceVersion: o.ResourceVersion + "000"}
	must.Soon(t, 20*time.Second, "a get is refused: the cache is ready", func() bool {
		_, err := c.Get(t.Context(), o.Name, metav1.GetOptions{ResourceVersion: future.ResourceVersion})
		return apierrors.IsResourceExpired(err)
	})
	_, listed := c.List(t.Context(), future)
	_, watched := c.Watch(t.Context(), future)
	for what, err := range map[string]error{"list": listed, "watch": watched, "delete all": c.DeleteCollection(t.Context(), metav1.DeleteOptions{}, future)} {
		fails(t, apierrors.IsResourceExpired, "", err, "%s", what)
	}
	must.Get(c.Update(t.Context(), o, metav1.UpdateOptions{}))(t)
}
