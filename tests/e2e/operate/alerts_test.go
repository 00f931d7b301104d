//go:build e2e

package operate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

func testAlerts(t *testing.T, w *world) {
	t.Run("rules", func(t *testing.T) {
		dir := t.TempDir()
		cases := read(t, "../../../deploy/tests/alerts.yaml")
		suite.Put(t, filepath.Join(dir, "rules.yaml"), must.Get(yaml.Marshal(shippedRules(t)))(t))
		suite.Put(t, filepath.Join(dir, "alerts.yaml"), cases)
		succeed(t, "", "promtool", "check", "rules", filepath.Join(dir, "rules.yaml"))
		succeed(t, "", "promtool", "test", "rules", filepath.Join(dir, "alerts.yaml"))
		for _, name := range shippedRules(t).alerts() {
			check.Same(t, true, strings.Contains(cases, "alertname: "+name+"\n"), "%s has no test", name)
		}
	})
	t.Run("inhibited", func(t *testing.T) { testInhibited(t, w) })
	token := suite.Token(t, w.core, "operate", "fairlead-metrics")
	t.Run("metrics", func(t *testing.T) {
		w.serves(t, 10*time.Second, w.front.Admin, "/metrics", token)
		_, scrape := w.get(t, w.front.Admin, "/metrics", token)
		a := command(t, scrape, "promtool", "check", "metrics")
		for line := range strings.Lines(a.Out + a.Errs) {
			check.Same(t, true, !strings.HasPrefix(line, "fairlead") && !strings.HasPrefix(line, "aggregator"), "promtool check metrics: %s", line)
		}
	})
	t.Run("fire and clear", func(t *testing.T) { testFire(t, w, token) })
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", alone.Ports(t, 1)[0])
}

// testInhibited configures a real Alertmanager as in the example, and sends it the alerts of a dead
// backend with traffic, and of a cluster without Fairlead. It must report one alert per cause.
func testInhibited(t *testing.T, w *world) {
	config := must.Get(filepath.Abs("../../../deploy/components/monitoring/alertmanager.yaml"))(t)
	succeed(t, "", "amtool", "check-config", config)
	address := freeAddress(t)
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "alertmanager", Path: "prometheus-alertmanager",
		Args:  []string{"--config.file=" + config, "--storage.path=" + t.TempDir(), "--web.listen-address=" + address, "--cluster.listen-address="},
		Ready: cluster.Endpoint{URL: "http://" + address}.Serves("/-/ready", cluster.Credentials{}),
	}))(t)
	type alert struct {
		Labels map[string]string `json:"labels"`
	}
	var alerts []alert
	for _, line := range []string{
		"a FairleadBackendErrors critical x", "a FairleadBackendErrors warning x", "a FairleadAPIServiceDown warning x", "a KubeAggregatedAPIDown warning x",
		"a FairleadDiscoveryStale warning x", "a FairleadEndpointDown warning x", "a FairleadAPIServiceDown warning y", "a KubeAggregatedAPIErrors warning y",
		"b FairleadDown critical", "b FairleadBackendErrors critical x", "b KubeAggregatedAPIDown warning y",
		"c FairleadAcceptStalls critical", "c FairleadHandshakesFailing warning x no_room",
	} {
		of := append(strings.Fields(line), "", "")
		alerts = append(alerts, alert{map[string]string{"cluster": of[0], "alertname": of[1], "severity": of[2], "name": of[3], "cause": of[4]}})
	}
	body := must.Get(json.Marshal(alerts))(t)
	must.Get(ask.Do(t.Context(), new(http.Client), http.MethodPost, "http://"+address+"/api/v2/alerts", nil, string(body)))(t)
	want := []string{"a FairleadAPIServiceDown warning y", "a FairleadBackendErrors critical x", "b FairleadDown critical ", "c FairleadAcceptStalls critical "}
	suite.Eventually(t, 30*time.Second, "one alert for one cause", func() (bool, string) {
		var list []alert
		err := ask.JSON(t.Context(), "http://"+address+"/api/v2/alerts?inhibited=false", &list)
		var got []string
		for _, a := range list {
			got = append(got, fmt.Sprint(a.Labels["cluster"], " ", a.Labels["alertname"], " ", a.Labels["severity"], " ", a.Labels["name"]))
		}
		slices.Sort(got)
		return slices.Equal(got, want), fmt.Sprint(got, err)
	})
}

// testFire lets a real Prometheus scrape a Fairlead with a ServiceAccount's token, and makes alerts
// of every kind of series fire and clear. promtool tests all alerts.
func testFire(t *testing.T, w *world, token string) {
	serving := func(name string, lasts time.Duration) cluster.Pair {
		return must.Get(w.PKI.Serving.Issue(name, cluster.Leaf{User: name, Names: []string{name + ".example.com"}, NotAfter: time.Now().Add(lasts)}))(t)
	}
	const long = 9 * 24 * time.Hour // too long for any alert
	spare, broken := serving("spare", long), serving("broken", long)
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Name: "alarmed", Args: []string{
		"--tls-sni-cert-key=" + spare.CertFile + "," + spare.KeyFile, "--tls-sni-cert-key=" + broken.CertFile + "," + broken.KeyFile,
	}}))(t)
	knows := startPrometheus(t, w, token, front.Admin)
	dead, failing := w.serve(t, "alarm-dead", nil), w.serve(t, "alarm-failing", nil)
	half := w.serveTwo(t, "alarm-half", "10.79.0.11", "10.79.0.12")
	w.load(t, front, widgetsOf("alarm-failing"))
	set := func(s *extension.Server, faults ...extension.Fault) func() {
		return func() { must.Do(t, s.Set(faults...)) }
	}
	for _, a := range []struct {
		alerts      string // their names, separated by |
		labels      string // of the expected alerts, besides their names
		before      string // an expression that must have a result first; empty: none
		fire, clear func()
	}{
		{
			"KubeAggregatedAPIErrors|KubeAggregatedAPIDown|FairleadAPIServiceDown|FairleadDiscoveryStale", `name="v1.alarm-dead.example.com"`,
			`aggregator_unavailable_apiservice{name="v1.alarm-dead.example.com"} == 0`, // the counter counts transitions
			set(dead, extension.Fault{Kind: extension.Dead}), set(dead),
		},
		{
			"FairleadEndpointDown", `name="v1.alarm-half.example.com",address="10.79.0.12:8443"`,
			`fairlead_endpoint_healthy{address="10.79.0.12:8443"} == 1`,
			set(half, extension.Fault{Kind: extension.Dead}), set(half),
		},
		{
			"FairleadCertificateExpiring", `source="` + spare.CertFile + `"`,
			`fairlead_certificate_expiration_timestamp_seconds{source="` + spare.CertFile + `"}`,
			func() { serving("spare", 15*time.Minute) }, func() { serving("spare", long) },
		},
		{
			"FairleadReloadFailing", `source="` + broken.CertFile + `"`,
			`fairlead_certificate_reload_valid{source="` + broken.CertFile + `"} == 1`,
			func() { suite.Put(t, broken.CertFile, "no certificate") }, func() { serving("broken", long) },
		},
		{
			"FairleadBackendErrors", `group="alarm-failing.example.com",version="v1"`,
			`aggregator_unavailable_apiservice{name="v1.alarm-failing.example.com"} == 0`,
			set(failing, extension.Fault{Kind: extension.Status, Code: 500, Path: widgetsOf("alarm-failing")}), set(failing),
		},
		{
			"FairleadDown", "", "", front.Part.Kill, func() { must.Do(t, front.Part.Restart(t.Context())) },
		},
	} {
		first, _, _ := strings.Cut(a.alerts, "|")
		t.Run(first, func(t *testing.T) {
			firing := fmt.Sprintf(`ALERTS{alertstate="firing",alertname=~"%s",%s}`, a.alerts, a.labels)
			if a.before != "" { // Prometheus must see the initial state before something is broken
				knows(t, a.before)
			}
			knows(t, "absent("+firing+")")
			a.fire()
			knows(t, fmt.Sprintf("count(count by (alertname) (%s)) == %d", firing, 1+strings.Count(a.alerts, "|")))
			a.clear()
			knows(t, "absent("+firing+")")
		})
	}
}

// startPrometheus runs Prometheus with the shipped alerts, shortened so that minutes become seconds: without `for`, and
// with ranges of 5 s, which are five scrapes, or 30 s for the range of hours in steps. Nothing else is changed, and
// every series is real. knows waits until an expression has a result.
func startPrometheus(t *testing.T, w *world, token string, admin cluster.Endpoint) (knows func(t *testing.T, expr string)) {
	t.Helper()
	dir, address := t.TempDir(), freeAddress(t)
	r := shippedRules(t)
	ranges, steps := regexp.MustCompile(`\[\d+[mh]\]`), regexp.MustCompile(`\[\d+h:\d+m\]`)
	for _, g := range r.Groups {
		for i := range g.Rules {
			rule := &g.Rules[i]
			rule.For = "" // none
			rule.Expr = steps.ReplaceAllString(ranges.ReplaceAllString(rule.Expr, "[5s]"), "[30s:1s]")
		}
	}
	suite.Put(t, filepath.Join(dir, "rules.yaml"), must.Get(yaml.Marshal(r))(t))
	suite.Put(t, filepath.Join(dir, "token"), token)
	suite.Put(t, filepath.Join(dir, "prometheus.yaml"), fmt.Sprintf(`
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: fairlead
    scheme: https
    authorization: {credentials_file: token}
    tls_config: {ca_file: %s}
    static_configs: [{targets: [%q]}]
`, admin.CAFile, strings.TrimPrefix(admin.URL, "https://")))
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "prometheus", Path: "prometheus",
		Args:  []string{"--config.file=" + filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address},
		Ready: cluster.Endpoint{URL: "http://" + address}.Serves("/-/ready", cluster.Credentials{}),
	}))(t)
	return func(t *testing.T, expr string) {
		t.Helper()
		suite.Eventually(t, 90*time.Second, expr, func() (bool, string) {
			var body struct {
				Data struct{ Result []json.RawMessage }
			}
			err := ask.JSON(t.Context(), "http://"+address+"/api/v1/query?query="+url.QueryEscape(expr), &body)
			return err == nil && len(body.Data.Result) > 0, fmt.Sprint(body, err)
		})
	}
}

func widgetsOf(name string) string {
	return "/apis/" + name + ".example.com/v1/namespaces/default/widgets"
}

// load sends some thirty requests a second for a path until the test ends. The metrics record the results.
func (w *world) load(t *testing.T, front *cluster.Front, path string) {
	t.Helper()
	client := suite.Client(t, front.Endpoint, w.Admin())
	request := func(int) (method, url, body string) { return http.MethodGet, front.Endpoint.URL + path, "" }
	(&volley.Load{Every: time.Second / 30, Clients: []*http.Client{client}, Make: request}).Start(t)
}
