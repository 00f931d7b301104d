//go:build e2e

package etcd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	aggregatorscheme "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/scheme"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const (
	jsonPatch  = "application/json-patch+json"
	mergePatch = "application/merge-patch+json"
	strategic  = "application/strategic-merge-patch+json"
	apply      = "application/apply-patch+yaml"
	protobuf   = "application/vnd.kubernetes.protobuf"
	table      = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	partial    = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"
	selected   = "labelSelector=suite%3Ddiff"
)

// manifest returns an APIService as JSON. It inserts more into the metadata and spec into the spec.
func manifest(name, more, spec string) string {
	version, group, _ := strings.Cut(name, ".")
	return fmt.Sprintf(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":%q,"labels":{"suite":"diff"}%s},`+
		`"spec":{"group":%q,"version":%q,"groupPriorityMinimum":100,"versionPriority":10%s}}`, name, more, group, version, spec)
}

// service is a spec whose Service does not exist.
const service = `,"service":{"namespace":"nowhere","name":"none"},"insecureSkipTLSVerify":true`

// operations returns the script. Most objects are Local, because only the script writes to them. Fairlead answers by
// k8s.io/apiserver, so one of each kind of request shows that its parts are put together like those of kube-apiserver.
func operations() []operation {
	const get, post, put, patch, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete
	a, b := "v1.a.diff.example.com", "v1.b.diff.example.com"
	return slices.Concat([]operation{
		// creations
		{name: "create", method: post, body: manifest(a, "", ""), save: "a"},
		{name: "create again", method: post, body: manifest(a, "", "")},
		{name: "create with a field manager", method: post, path: "?fieldManager=me", body: manifest(b, `,"annotations":{"x":"y"}`, ""), save: "b"},
		{name: "create a remote", method: post, body: manifest("v1.r.diff.example.com", "", service)},
		{name: "create by dry run", method: post, path: "?dryRun=All", body: manifest("v1.dry.diff.example.com", "", "")},
		{name: "nothing was created by dry run", method: get, path: "/v1.dry.diff.example.com"},
		{name: "create with an unknown field, strict", method: post, path: "?fieldValidation=Strict", body: manifest("v1.u.diff.example.com", `,"colour":"red"`, `,"flavour":"sweet"`)},
		{name: "create with an unknown field, warned", method: post, path: "?fieldValidation=Warn&dryRun=All", body: manifest("v1.u.diff.example.com", "", `,"flavour":"sweet"`)},
		{name: "create invalid", method: post, body: manifest("v1.i.diff.example.com", "", `,"caBundle":"eA==","insecureSkipTLSVerify":true`)},
		{name: "create a wrong name", method: post, body: strings.Replace(manifest("v1.i.diff.example.com", "", ""), `"name":"v1.i`, `"name":"v2.i`, 1)},
		{name: "create by generateName", method: post, body: strings.Replace(manifest("v1.i.diff.example.com", "", ""), `"name":"v1.i.diff.example.com"`, `"generateName":"v1."`, 1)},
		{name: "create with priorities out of range", method: post, body: strings.Replace(manifest("v1.i.diff.example.com", "", ""), `Minimum":100,"versionPriority":10`, `Minimum":30000,"versionPriority":-1`, 1)},
		{name: "create with a status", method: post, body: strings.TrimSuffix(manifest("v1.s.diff.example.com", "", ""), "}") + `,"status":{"conditions":[{"type":"X","status":"True"}]}}`},
		{name: "create of another kind", method: post, body: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}}`},
		{name: "create by YAML", method: post, contentType: "application/yaml", path: "?dryRun=All", body: manifest("v1.y.diff.example.com", "", "")},
		{name: "create with finalizers and owners", method: post, body: manifest("v1.f.diff.example.com", `,"finalizers":["example.com/stay"],"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"1"}]`, "")},
		{name: "create with an odd owner", method: post, body: manifest("v1.o.diff.example.com", `,"ownerReferences":[{"apiVersion":"v1","kind":"Node"}]`, ""),
			differs: "k8s.io/apimachinery 0.37 names the reference, this kube-apiserver has 0.36", want: "metadata.ownerReferences[0].name: Required value"},
		{name: "create in a namespace", method: post, path: "/apis/apiregistration.k8s.io/v1/namespaces/default/apiservices", body: manifest(a, "", "")},
		{name: "claim a protected group", method: post, body: manifest("v9.apps", "", service),
			differs: "Fairlead routes no protected group to a remote, and says so at admission", want: `protected`},
		{name: "take away the claim", method: del, path: "/v9.apps", differs: "there is none at Fairlead", want: "404"},
	}, []operation{
		// reads
		{name: "get", method: get, path: "/" + a},
		{name: "get none", method: get, path: "/v1.none.diff.example.com"},
		{name: "get by protobuf", method: get, path: "/" + a, accept: protobuf},
		{name: "get a table", method: get, path: "/" + a, accept: table},
		{name: "get a table with objects", method: get, path: "/" + b + "?includeObject=Object", accept: table},
		{name: "get metadata", method: get, path: "/" + a, accept: partial},
		{name: "get at 0", method: get, path: "/" + a + "?resourceVersion=0"},
		{name: "get the status", method: get, path: "/" + a + "/status"},
		{name: "list", method: get, path: "?" + selected, save: "all"},
		{name: "list by protobuf", method: get, path: "?" + selected, accept: protobuf},
		{name: "list a table", method: get, path: "?" + selected, accept: table},
		{name: "list at 0", method: get, path: "?resourceVersion=0&" + selected},
		{name: "list not older", method: get, path: "?resourceVersion={all.rv}&resourceVersionMatch=NotOlderThan&" + selected},
		{name: "list exactly", method: get, path: "?resourceVersion={all.rv}&resourceVersionMatch=Exact&" + selected},
		{name: "list by name", method: get, path: "?fieldSelector=metadata.name%3D" + a},
		{name: "list by an odd field", method: get, path: "?fieldSelector=spec.group%3Dx"},
		{name: "list two", method: get, path: "?limit=2&" + selected, save: "page"},
		{name: "list the next two", method: get, path: "?limit=2&continue={page.continue}&" + selected},
		{name: "list after compaction", method: get, path: "?limit=2&resourceVersion={a.rv}&resourceVersionMatch=Exact&" + selected, before: compact},
	}, []operation{
		// updates and patches
		{name: "update", method: put, path: "/" + a, body: manifest(a, `,"resourceVersion":"{a.rv}"`, `,"versionPriority":20`), save: "a2"},
		{name: "update of an old one", method: put, path: "/" + a, body: manifest(a, `,"resourceVersion":"{a.rv}"`, "")},
		{name: "update with another uid", method: put, path: "/" + a, body: manifest(a, `,"uid":"1","resourceVersion":"{a2.rv}"`, "")},
		{name: "update of the group", method: put, path: "/" + a, body: strings.Replace(manifest(a, `,"resourceVersion":"{a2.rv}"`, ""), `"group":"a.`, `"group":"b.`, 1)},
		{name: "update of none", method: put, path: "/v1.none.diff.example.com", body: manifest("v1.none.diff.example.com", "", "")},
		{name: "update without change", method: put, path: "/" + a, body: manifest(a, `,"resourceVersion":"{a2.rv}"`, `,"versionPriority":20`)},
		{name: "JSON patch", method: patch, path: "/" + a, contentType: jsonPatch, body: `[{"op":"test","path":"/spec/versionPriority","value":20},{"op":"replace","path":"/spec/versionPriority","value":21}]`},
		{name: "merge patch", method: patch, path: "/" + a, contentType: mergePatch, body: `{"metadata":{"annotations":{"m":"1"}},"spec":{"versionPriority":22}}`},
		{name: "merge patch of the status is passed over", method: patch, path: "/" + a, contentType: mergePatch, body: `{"status":{"conditions":[]}}`},
		{name: "merge patch to an invalid object", method: patch, path: "/" + a, contentType: mergePatch, body: `{"spec":{"versionPriority":-2}}`},
		{name: "merge patch of an old one", method: patch, path: "/" + a, contentType: mergePatch, body: `{"metadata":{"resourceVersion":"1"},"spec":{"versionPriority":23}}`},
		{name: "strategic merge patch", method: patch, path: "/" + a, contentType: strategic, body: `{"metadata":{"annotations":{"s":"1","m":null}}}`},
		{name: "strategic merge patch of the status", method: patch, path: "/" + a + "/status", contentType: strategic, body: `{"status":{"conditions":[{"type":"Z","status":"True","reason":"R"}]}}`},
		{name: "status update", method: put, path: "/" + b + "/status", body: strings.TrimSuffix(manifest(b, "", ""), "}") + `,"status":{"conditions":[{"type":"Y","status":"False","reason":"R","message":"m","lastTransitionTime":"2020-01-01T00:00:00Z"}]}}`},
		{name: "apply", method: patch, path: "/v1.ssa.diff.example.com?fieldManager=one", contentType: apply, body: manifest("v1.ssa.diff.example.com", "", "")},
		{name: "apply another's field", method: patch, path: "/v1.ssa.diff.example.com?fieldManager=two", contentType: apply, body: strings.Replace(manifest("v1.ssa.diff.example.com", "", ""), ":10", ":11", 1)},
		{name: "apply another's field by force", method: patch, path: "/v1.ssa.diff.example.com?fieldManager=two&force=true", contentType: apply, body: strings.Replace(manifest("v1.ssa.diff.example.com", "", ""), ":10", ":11", 1)},
		{name: "apply a status", method: patch, path: "/v1.ssa.diff.example.com/status?fieldManager=three", contentType: apply, body: `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.ssa.diff.example.com"},"status":{"conditions":[{"type":"W","status":"True"}]}}`},
		{name: "what came of it", method: get, path: "?" + selected},
	}, []operation{
		// watches
		{name: "watch from now", method: get, path: "?watch=1&timeoutSeconds=2&" + selected},
		{name: "watch from a version", method: get, path: "?watch=1&timeoutSeconds=2&resourceVersion={a2.rv}&fieldSelector=metadata.name%3D" + a},
		{name: "watch a table", method: get, path: "?watch=1&timeoutSeconds=2&" + selected, accept: table},
		{name: "watch list", method: get, path: "?watch=1&timeoutSeconds=2&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&" + selected},
		{name: "watch from the beginning", method: get, path: "?watch=1&timeoutSeconds=2&resourceVersion=1&" + selected, before: restart},
		{name: "watch one by the old path", method: get, path: "/apis/apiregistration.k8s.io/v1/watch/apiservices/" + a + "?timeoutSeconds=2"},
		{name: "list on after compaction", method: get, path: "?limit=2&continue={page.continue}&" + selected},
	}, []operation{
		// deletions
		{name: "delete an old version", method: del, path: "/" + b, body: `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":"1"}}`},
		{name: "delete by dry run", method: del, path: "/" + b + "?dryRun=All"},
		{name: "delete", method: del, path: "/" + b, body: `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"{b.uid}"}}`},
		{name: "delete none", method: del, path: "/" + b},
		{name: "delete what has a finalizer", method: del, path: "/v1.f.diff.example.com"},
		{name: "it is on its way", method: get, path: "/v1.f.diff.example.com"},
		{name: "no finalizer for what is on its way", method: patch, path: "/v1.f.diff.example.com", contentType: mergePatch, body: `{"metadata":{"finalizers":["example.com/stay","example.com/more"]}}`},
		{name: "the finalizer goes", method: patch, path: "/v1.f.diff.example.com", contentType: mergePatch, body: `{"metadata":{"finalizers":null}}`},
		{name: "and it", method: get, path: "/v1.f.diff.example.com"},
		{name: "delete a collection by field", method: del, path: "?fieldSelector=metadata.name%3D" + a},
		{name: "delete a collection", method: del, path: "?" + selected},
		{name: "nothing is left", method: get, path: "?" + selected},
	}, []operation{
		// documents
		{name: "resources", method: get, path: "/apis/apiregistration.k8s.io/v1"},
		{name: "group", method: get, path: "/apis/apiregistration.k8s.io"},
		{name: "old version", method: get, path: "/apis/apiregistration.k8s.io/v1beta1"},
		{name: "options", method: http.MethodOptions, path: "/" + a},
	})
}

func fromProtobuf(t *testing.T, data []byte) []byte {
	t.Helper()
	o, _, err := aggregatorscheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		t.Fatalf("%v in %q", err, data)
	}
	return must.Get(json.Marshal(o))(t)
}
