package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// shared is the ConfigMap of a cluster.
func shared(in *installation) *corev1.ConfigMap {
	in.Helper()
	return must.Get(in.cluster.CoreV1().ConfigMaps("kube-system").Get(in.Context(), "extension-apiserver-authentication", metav1.GetOptions{}))(in)
}

// append runs with the options, and returns what it prints, with CA for Fairlead's.
func (in *installation) append(a appender) (string, error) {
	in.Helper()
	var out bytes.Buffer
	err := a.run(in.Context(), in.cluster.CoreV1(), "kube-system", &out)
	ca, _ := in.leaf("fairlead-ca")
	return strings.ReplaceAll(strings.TrimPrefix(out.String(), "configmap/extension-apiserver-authentication "), ca.Subject.CommonName, "CA"), err
}

// installed is a cluster with Fairlead's certificates and the ConfigMap's data.
func installed(t *testing.T, data map[string]string) *installation {
	t.Helper()
	in := &installation{t, fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}, Data: data})}
	in.init()
	return in
}

func TestAppend(t *testing.T) {
	theirs := string(pki.NewCA("front-proxy-ca").PEM())
	const names = `["front-proxy-client"]`
	in := installed(t, map[string]string{bundleKey: theirs, namesKey: names, "client-ca-file": "theirs"})
	before := shared(in)
	const appended, removed = "  CA \"CA\" appended\n  allowed names [\"front-proxy-client\" \"fairlead\"]\n", "  CA \"CA\" removed\n  allowed names [\"front-proxy-client\"]\n"
	ours := string(must.Get(in.cluster.CoreV1().Secrets("kube-system").Get(t.Context(), "fairlead-ca", metav1.GetOptions{}))(t).Data["tls.crt"])
	full := map[string]string{bundleKey: theirs + ours, namesKey: `["front-proxy-client","fairlead"]`, "client-ca-file": "theirs"}
	for _, step := range []struct {
		name string
		a    appender
		want string
		data map[string]string
	}{
		{"said", appender{dryRun: true}, "not written (--dry-run)\n" + appended, before.Data},
		{"appended", appender{}, "written\n" + appended, full},
		{"again", appender{}, "unchanged\n", full},
		{"said to be removed", appender{remove: true, dryRun: true}, "not written (--dry-run)\n" + removed, full},
		{"removed", appender{remove: true}, "written\n" + removed, before.Data},
		{"removed again", appender{remove: true}, "unchanged\n", before.Data},
	} {
		check.Same(t, step.want, must.Get(in.append(step.a))(t), "%s", step.name)
		check.Same(t, step.data, shared(in).Data, "%s", step.name)
	}
}

// Another CA of Fairlead is appended beside the last one, which clients may still present; both are removed together.
// Without allowed names every name is allowed: one name would refuse all others. What cannot be kept is not written.
func TestAppendToOthers(t *testing.T) {
	theirs, ours := string(pki.NewCA("front-proxy-ca").PEM()), string(pki.NewCA("fairlead-ca-1").PEM())
	for _, tt := range []struct {
		name              string
		bundle, names     string
		appended, removed string // what is printed, or the error
		left              string // names
	}{
		{"the next CA", theirs + ours, `["a","fairlead"]`, "written\n  CA \"CA\" appended\n", "written\n  CA \"fairlead-ca-1\" removed\n  CA \"CA\" removed\n  allowed names [\"a\"]\n", `["a"]`},
		{"any name", theirs, `[]`, "written\n  CA \"CA\" appended\n", "written\n  CA \"CA\" removed\n", `[]`},
		{"without front proxies", "", "", "without --requestheader flags", "without --requestheader flags", ""},
		{"a bundle that cannot be read", "x", `["a"]`, "parsing " + bundleKey, "parsing " + bundleKey, `["a"]`},
		{"names that cannot be read", theirs, "a", "parsing " + namesKey, "parsing " + namesKey, "a"},
		{"only Fairlead's name", theirs, `["fairlead"]`, "written\n  CA \"CA\" appended\n", "nothing but Fairlead's", `["fairlead"]`},
	} {
		in := installed(t, map[string]string{bundleKey: tt.bundle, namesKey: tt.names, "client-ca-file": theirs})
		for i, want := range []string{tt.appended, tt.removed} {
			before := shared(in).Data
			out, err := in.append(appender{remove: i > 0})
			check.Has(t, out+fmt.Sprint(err), want)
			if err != nil {
				check.Same(t, before, shared(in).Data, "%s: the ConfigMap", tt.name)
			}
		}
		check.Same(t, tt.left, shared(in).Data[namesKey], "%s: names that are left", tt.name)
		if strings.HasPrefix(tt.removed, "written") {
			check.Same(t, theirs, shared(in).Data[bundleKey], "%s: CAs that are left", tt.name)
		}
	}
}

// What kube-apiserver writes meanwhile is kept.
func TestAppendConflict(t *testing.T) {
	in := installed(t, map[string]string{bundleKey: string(pki.NewCA("front-proxy-ca").PEM()), namesKey: `["a"]`})
	theirs := shared(in)
	theirs.Data[namesKey] = `["a","b"]`
	written := false
	in.cluster.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		if written {
			return false, nil, nil
		}
		written = true
		must.Do(t, in.cluster.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), theirs, "kube-system"))
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, theirs.Name, errors.New("changed"))
	})
	check.Same(t, "written\n  CA \"CA\" appended\n  allowed names [\"a\" \"b\" \"fairlead\"]\n", must.Get(in.append(appender{}))(t), "appended")
}

// Secrets that cert-manager renews, at a third of 90 days, stay as they are, and their CA is appended.
func TestAppendOfAnotherOwner(t *testing.T) {
	f, ca, dir := newFront(t), pki.NewCA("fairlead-ca"), t.TempDir()
	t.Setenv("KUBECONFIG", kubeconfig(t, f.Server))
	must.Get2(ca.WriteFiles(dir, "ca"))(t)
	file := func(name string) []byte { return must.Get(os.ReadFile(filepath.Join(dir, name)))(t) }
	secret := func(name string, crt, key []byte) reply {
		o := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
		o.Data = map[string][]byte{"tls.crt": crt, "tls.key": key, "ca.crt": ca.PEM()}
		return reply{http.StatusOK, string(must.Get(json.Marshal(o))(t))}
	}
	leaf := ca.Issue(pki.Leaf{CommonName: "fairlead"})
	theirs := secret("fairlead-front-proxy-client", leaf.CertPEM(), leaf.KeyPEM())
	conflict := reply{http.StatusConflict, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}`}
	trusted := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: authenticationMap}}
	trusted.Data = map[string]string{bundleKey: string(pki.NewCA("front-proxy-ca").PEM()), namesKey: `["a"]`}
	const path = "/api/v1/namespaces/kube-system/"
	f.answers[path+"secrets/fairlead-ca"] = []reply{secret("fairlead-ca", file("ca.crt"), file("ca.key"))}
	f.answers[path+"secrets/fairlead-front-proxy-client"] = []reply{theirs, conflict, theirs}
	f.answers[path+"configmaps/"+authenticationMap] = []reply{{http.StatusOK, string(must.Get(json.Marshal(trusted))(t))}}
	out := run(t, "", "init", "--append-authentication-configmap")
	check.Same(t, "secret/fairlead-ca unchanged\nconfigmap/"+authenticationMap+" written\n  CA \"fairlead-ca\" appended\n  allowed names [\"a\" \"fairlead\"]\n", out, "it prints")
}

// What is meant for the ConfigMap makes no Secret and no manifest instead.
func TestAppendFlags(t *testing.T) {
	f := newFront(t)
	t.Setenv("KUBECONFIG", kubeconfig(t, f.Server))
	for _, args := range [][]string{{"--dry-run"}, {"--remove"}, {"--layout=etcd", "--dry-run"}, {"--layout=etcd", "--append-authentication-configmap"}} {
		out := run(t, "", append([]string{"init"}, args...)...)
		check.Same(t, "exit 2: --remove and --dry-run need --append-authentication-configmap, which --layout excludes\n", out, "%q", args)
	}
	check.Same(t, 0, len(f.asked), "requests")
}
