//go:build e2e

package etcd

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// text returns an APIService as YAML.
func text(t *testing.T, o *apiregistrationv1.APIService) string {
	t.Helper()
	o.APIVersion, o.Kind = "apiregistration.k8s.io/v1", "APIService"
	data := must.Get(yaml.Marshal(o))(t)
	return string(data)
}

// testKubectl does what operators and controllers do.
func testKubectl(t *testing.T, w *world) {
	s := w.site(t, 2, cluster.Config{})
	server := s.extension(t, "widgets.example.com/v1")
	k, other := s.kubectl(t, s.doors[0].Endpoint), s.kubectl(t, s.doors[1].Endpoint)
	seen := &logbook.Book{}
	watch := other.command(t, "get", "apiservices", "--watch", "--output-watch-events")
	watch.Stdout, watch.Stderr = seen, seen
	must.Do(t, watch.Start())
	t.Cleanup(func() { _ = watch.Process.Kill(); _ = watch.Wait() })
	informed := s.inform(t, s.doors[1].Endpoint)
	sees := func(t *testing.T, what string, b *logbook.Book) {
		t.Helper()
		suite.Eventually(t, 10*time.Second, what, func() (bool, string) { return strings.Contains(b.String(), what), b.String() })
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "apiservice.yaml")
	must.Do(t, os.WriteFile(file, []byte(text(t, s.remote(widgetsAPI, server))), 0o600))
	t.Run("diff of what is not there", func(t *testing.T) { k.run(t, 1, "", []string{"diff", "-f", file}, "+kind: APIService") })
	t.Run("apply", func(t *testing.T) { k.run(t, 0, "", []string{"apply", "-f", file}, widgetsAPI+" created") })
	t.Run("wait", func(t *testing.T) {
		k.run(t, 0, "", []string{"wait", "--for=condition=Available", "--timeout=20s", "apiservice/" + widgetsAPI}, "condition met")
	})
	t.Run("routed by both", func(t *testing.T) {
		for _, k := range []kubectl{k, other} {
			k.run(t, 0, "", []string{"get", "widgets", "-A", "-o", "name"}, "widget.widgets.example.com/")
		}
	})
	t.Run("apply again", func(t *testing.T) { k.run(t, 0, "", []string{"apply", "-f", file}, "unchanged") })
	t.Run("no diff", func(t *testing.T) { k.run(t, 0, "", []string{"diff", "-f", file}) })
	t.Run("server-side apply", func(t *testing.T) {
		k.run(t, 0, "", []string{"apply", "--server-side", "--field-manager=one", "--force-conflicts", "-f", file}, "serverside-applied")
	})
	t.Run("edit", func(t *testing.T) {
		editor := filepath.Join(dir, "editor")
		must.Do(t, os.WriteFile(editor, []byte("#!/bin/sh\nsed -i 's/versionPriority: 10/versionPriority: 77/' \"$1\"\n"), 0o700))
		cmd := k.command(t, "edit", "apiservice", widgetsAPI)
		cmd.Env = append(os.Environ(), "EDITOR="+editor)
		if a := suite.Run(t, cmd, ""); a.Code != 0 || !strings.Contains(a.Out, "edited") {
			t.Fatalf("%+v", a)
		}
		k.run(t, 0, "", []string{"get", "apiservice", widgetsAPI, "-o", "jsonpath={.spec.versionPriority}"}, "77")
	})
	t.Run("diff of what was edited", func(t *testing.T) { k.run(t, 1, "", []string{"diff", "-f", file}, "+  versionPriority: 10") })
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"label", "apiservice", widgetsAPI, "x=y"}, "labeled"},
		{[]string{"annotate", "apiservice", widgetsAPI, "x=y"}, "annotated"},
		{[]string{"patch", "apiservice", widgetsAPI, "--type=json", "-p", `[{"op":"replace","path":"/spec/versionPriority","value":12}]`}, "patched"},
		{[]string{"get", "apiservices", "-l", "x=y"}, server.URL()},
		{[]string{"describe", "apiservice", widgetsAPI}, "all checks passed"},
		{[]string{"explain", "apiservice.spec"}, "groupPriorityMinimum"},
		{[]string{"api-resources", "--api-group=apiregistration.k8s.io", "-o", "wide"}, "create,delete,deletecollection,get,list,patch,update,watch"},
		{[]string{"get", "apiservice", widgetsAPI, "-o", "yaml", "--show-managed-fields"}, "manager: kubectl-patch"},
		{[]string{"auth", "can-i", "create", "apiservices"}, ""},
	} {
		t.Run(strings.Join(tc.args[:2], " ")+" "+tc.args[len(tc.args)-1], func(t *testing.T) {
			if tc.want == "" { // without a local apiserver there are no reviews
				k.run(t, 1, "", tc.args)
				return
			}
			k.run(t, 0, "", tc.args, tc.want)
		})
	}
	t.Run("an unknown field is refused", func(t *testing.T) {
		data := must.Get(os.ReadFile(file))(t)
		k.run(t, 1, strings.Replace(string(data), "spec:", "spec:\n  flavour: sweet", 1), []string{"apply", "-f", "-"}, `unknown field "spec.flavour"`)
	})
	t.Run("a protected group is refused", func(t *testing.T) {
		k.run(t, 1, text(t, s.remote("v1.apps", server)), []string{"create", "-f", "-"}, `the group "apps" is protected`)
	})
	t.Run("the example", func(t *testing.T) {
		k.run(t, 0, "", []string{"apply", "-f", "../../examples/etcd"}, "v1.tides.example.com created")
		k.run(t, 0, "", []string{"get", "apiservice", "v1.tides.example.com"}, "https://tides-1.example.com,https://tides-2.example.com:8443")
		k.run(t, 0, "", []string{"delete", "-f", "../../examples/etcd"}, "deleted")
	})
	t.Run("users without rights", func(t *testing.T) {
		alice := must.Get(s.PKI.Client.Issue("alice", cluster.Leaf{User: "alice"}))(t)
		at := filepath.Join(dir, "alice")
		must.Do(t, s.doors[0].Endpoint.WriteKubeconfig(at, cluster.Credentials{Pair: alice}))
		a := suite.Run(t, exec.CommandContext(t.Context(), w.kubectl, "--kubeconfig", at, "delete", "apiservice", widgetsAPI), "")
		if a.Code == 0 || !strings.Contains(a.Errs, "Forbidden") {
			t.Errorf("%+v", a)
		}
	})
	t.Run("delete", func(t *testing.T) { k.run(t, 0, "", []string{"delete", "-f", file}, "deleted") })
	t.Run("no longer routed", func(t *testing.T) {
		for _, d := range s.doors {
			d.becomes(t, widgets, http.StatusNotFound)
		}
	})
	for _, what := range []string{"ADDED", "MODIFIED", "DELETED", "True"} {
		t.Run("get -w sees "+what, func(t *testing.T) { sees(t, what, seen) })
	}
	for _, what := range []string{"added " + widgetsAPI, "updated " + widgetsAPI, "deleted " + widgetsAPI} {
		t.Run("an informer sees "+what, func(t *testing.T) { sees(t, what, informed) })
	}
}

// inform runs client-go's informer and logs its events.
func (s *site) inform(t *testing.T, e cluster.Endpoint) *logbook.Book {
	t.Helper()
	c := must.Get(aggregator.NewForConfig(e.RESTConfig(s.Admin())))(t)
	b := &logbook.Book{}
	note := func(what string, o any) {
		if a, ok := o.(*apiregistrationv1.APIService); ok {
			fmt.Fprintln(b, what, a.Name)
		}
	}
	informer := externalversions.NewSharedInformerFactory(c, 0).Apiregistration().V1().APIServices().Informer()
	must.Get(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { note("added", o) }, UpdateFunc: func(_, o any) { note("updated", o) }, DeleteFunc: func(o any) { note("deleted", o) },
	}))(t)
	go informer.RunWithContext(t.Context()) // ends with the test
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the informer did not sync")
	}
	return b
}
