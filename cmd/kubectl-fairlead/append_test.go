package main

import (
	"bytes"
	"errors"
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
	return strings.ReplaceAll(strings.TrimPrefix(out.String(), "configmap/extension-apiserver-authentication "), in.caName(), "CA"), err
}

func (in *installation) caName() string {
	in.Helper()
	ca, _ := in.leaf("fairlead-ca")
	return ca.Subject.CommonName
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
func TestAppendNextCA(t *testing.T) {
	theirs := string(pki.NewCA("front-proxy-ca").PEM())
	in := installed(t, map[string]string{bundleKey: theirs + string(pki.NewCA("fairlead-ca-1").PEM()), namesKey: `["a","fairlead"]`})
	check.Same(t, "written\n  CA \"CA\" appended\n", must.Get(in.append(appender{}))(t), "the next CA")
	check.Same(t, "written\n  CA \"fairlead-ca-1\" removed\n  CA \"CA\" removed\n  allowed names [\"a\"]\n", must.Get(in.append(appender{remove: true}))(t), "all CAs")
	check.Same(t, map[string]string{bundleKey: theirs, namesKey: `["a"]`}, shared(in).Data, "what is left")
}

// Without allowed names every name is allowed: one name would refuse all others.
func TestAppendToAnyName(t *testing.T) {
	in := installed(t, map[string]string{bundleKey: string(pki.NewCA("front-proxy-ca").PEM()), namesKey: `[]`})
	check.Same(t, "written\n  CA \"CA\" appended\n", must.Get(in.append(appender{}))(t), "appended")
	check.Same(t, `[]`, shared(in).Data[namesKey], "names")
	check.Same(t, "written\n  CA \"CA\" removed\n", must.Get(in.append(appender{remove: true}))(t), "removed")
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

func TestAppendRefuses(t *testing.T) {
	theirs := string(pki.NewCA("front-proxy-ca").PEM())
	for _, tt := range []struct {
		name string
		data map[string]string
		a    appender
		want string
	}{
		{"a cluster without front proxies", map[string]string{"client-ca-file": theirs}, appender{}, "without --requestheader flags"},
		{"a bundle that cannot be read", map[string]string{bundleKey: "x", namesKey: `["a"]`}, appender{}, "parsing " + bundleKey},
		{"names that cannot be read", map[string]string{bundleKey: theirs, namesKey: "a"}, appender{}, "parsing " + namesKey},
		{"to allow every name", map[string]string{bundleKey: theirs, namesKey: `["fairlead"]`}, appender{remove: true}, "nothing but Fairlead's"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := installed(t, tt.data)
			if out, err := in.append(tt.a); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("it printed %q and returned %v, want %q", out, err, tt.want)
			}
			check.Same(t, tt.data, shared(in).Data, "the ConfigMap")
		})
	}
}
