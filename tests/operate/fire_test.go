//go:build e2e

package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// alarm makes an alert fire and clear.
type alarm struct {
	labels      map[string]string // of the expected alert, besides its name
	before      string            // an expression that must have a result first; empty: none
	fire, clear func(t *testing.T)
}

type prometheus struct {
	address string
	targets string // file with its scrape targets
}

// testFire lets a real Prometheus scrape a Fairlead with a ServiceAccount's token, and makes each
// shipped alert fire and clear.
func testFire(t *testing.T, w *world, token string) {
	spare := w.spare(t, "spare")
	broken := w.spare(t, "broken")
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Name: "alarmed", Args: []string{
		"--tls-sni-cert-key=" + spare.CertFile + "," + spare.KeyFile, "--tls-sni-cert-key=" + broken.CertFile + "," + broken.KeyFile,
	}}))(t)
	p := startPrometheus(t, w, token)
	p.scrape(t, front.Admin)
	alarms := w.alarms(t, p, front, spare, broken)
	t.Run("with Fairlead", func(t *testing.T) {
		for _, name := range shippedRules(t).alerts() {
			if name == "FairleadDown" || name == "FairleadReplicaDown" || unfired[name] {
				continue // see below
			}
			a, ok := alarms[name]
			if !ok {
				t.Errorf("%s is shipped, but no case makes it fire", name)
				continue
			}
			delete(alarms, name)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				if a.before != "" {
					p.knows(t, a.before)
				}
				p.await(t, name, a.labels, false)
				a.fire(t)
				p.await(t, name, a.labels, true)
				a.clear(t)
				p.await(t, name, a.labels, false)
			})
		}
		for name := range alarms {
			t.Errorf("%s is tested, but not shipped", name)
		}
	})
	// These two alerts count all replicas that Prometheus knows, so that number must not change
	// meanwhile.
	t.Run("FairleadReplicaDown", func(t *testing.T) {
		p.scrape(t, front.Admin, w.front.Admin)
		p.knows(t, `quantile_over_time(0.5, count(up{job="fairlead"} == 1)[30s:1s]) == 2`)
		p.await(t, "FairleadReplicaDown", nil, false)
		p.scrape(t, front.Admin)
		p.await(t, "FairleadReplicaDown", nil, true)
		p.await(t, "FairleadReplicaDown", nil, false) // one replica is the usual number by now
	})
	t.Run("FairleadDown", func(t *testing.T) {
		p.await(t, "FairleadDown", nil, false)
		front.Part.Kill()
		p.await(t, "FairleadDown", nil, true)
		must.Do(t, front.Part.Restart(t.Context()))
		p.await(t, "FairleadDown", nil, false)
	})
}

// unfired are alerts that only promtool tests (deploy/tests): what fires them would break other
// cases on the same cluster.
var unfired = map[string]bool{
	"FairleadLocalAPIServerDown": true, "FairleadNoLocalAPIServer": true, "FairleadReviewsFailing": true, // all cases share one kube-apiserver
	"FairleadAcceptStalls": true, "FairleadAuditLost": true, // the front door, or its disk, would have to be full
	"FairleadRegistryProblems":      true, // other cases cause some all the time
	"FairleadEntrypointUnpublished": true, // like FairleadEntrypointContested, for an hour
}

// spare issues a serving pair that is never presented, so it can expire and break. It is valid for
// nine days, too long for any alert.
func (w *world) spare(t *testing.T, name string) cluster.Pair {
	t.Helper()
	return w.reissue(t, name, 9*24*time.Hour)
}

func (w *world) reissue(t *testing.T, name string, lasts time.Duration) cluster.Pair {
	t.Helper()
	pair := must.Get(w.PKI.Serving.Issue(name, cluster.Leaf{User: name, Names: []string{name + ".example.com"}, NotAfter: time.Now().Add(lasts)}))(t)
	return pair
}

// startPrometheus runs Prometheus with the shipped alerts, shortened so that minutes become
// seconds: without `for`, and with ranges of 5 s, which are five scrapes, or 30 s for the range of
// hours in steps. Nothing else is changed, and every series is real.
func startPrometheus(t *testing.T, w *world, token string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	r := shippedRules(t)
	ranges, steps := regexp.MustCompile(`\[\d+[mh]\]`), regexp.MustCompile(`\[\d+h:\d+m\]`)
	for _, g := range r.Groups {
		for i := range g.Rules {
			rule := &g.Rules[i]
			if rule.Alert != "" {
				rule.For = "0s"
			}
			rule.Expr = steps.ReplaceAllString(ranges.ReplaceAllString(rule.Expr, "[5s]"), "[30s:1s]")
		}
	}
	writeRules(t, filepath.Join(dir, "rules.yaml"), r)
	must.Do(t, os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600))
	p := &prometheus{address: freeAddress(t), targets: filepath.Join(dir, "targets.json")}
	must.Do(t, os.WriteFile(p.targets, []byte("[]"), 0o600))
	must.Do(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), fmt.Appendf(nil, `
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: fairlead
    scheme: https
    authorization: {credentials_file: token}
    tls_config: {ca_file: %s}
    file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]
`, w.front.Admin.CAFile), 0o600))
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "prometheus", Path: "prometheus",
		Args:  []string{"--config.file=" + filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + p.address},
		Ready: func(ctx context.Context) error { _, err := p.firing(ctx); return err },
	}))(t)
	return p
}

// scrape sets the admin ports that Prometheus scrapes.
func (p *prometheus) scrape(t *testing.T, admins ...cluster.Endpoint) {
	t.Helper()
	list := []map[string][]string{{"targets": {}}}
	for _, a := range admins {
		list[0]["targets"] = append(list[0]["targets"], strings.TrimPrefix(a.URL, "https://"))
	}
	data := must.Get(json.Marshal(list))(t)
	must.Do(t, os.WriteFile(p.targets+".new", data, 0o600))
	must.Do(t, os.Rename(p.targets+".new", p.targets)) // atomically: half a file would have no targets
}

// await waits until an alert with these labels fires, or no longer does.
func (p *prometheus) await(t *testing.T, alert string, labels map[string]string, want bool) {
	t.Helper()
	suite.Eventually(t, 90*time.Second, fmt.Sprintf("%s %v firing: %v", alert, labels, want), func() (bool, string) {
		list, err := p.firing(t.Context())
		fires := false
		for _, a := range list {
			fits := a["alertname"] == alert
			for name, value := range labels {
				fits = fits && a[name] == value
			}
			fires = fires || fits
		}
		return err == nil && fires == want, fmt.Sprint(list, err)
	})
}

// knows waits until an expression has a result: Prometheus must see the initial state before
// something is broken.
func (p *prometheus) knows(t *testing.T, expr string) {
	t.Helper()
	var body struct {
		Data struct {
			Result []json.RawMessage
		}
	}
	suite.Eventually(t, 90*time.Second, expr, func() (bool, string) {
		err := ask.JSON(t.Context(), "http://"+p.address+"/api/v1/query?query="+url.QueryEscape(expr), &body)
		return err == nil && len(body.Data.Result) > 0, fmt.Sprint(body, err)
	})
}

// firing returns the labels of the firing alerts.
func (p *prometheus) firing(ctx context.Context) ([]map[string]string, error) {
	var body struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if err := ask.JSON(ctx, "http://"+p.address+"/api/v1/alerts", &body); err != nil {
		return nil, err
	}
	var list []map[string]string
	for _, a := range body.Data.Alerts {
		if a.State == "firing" {
			list = append(list, a.Labels)
		}
	}
	return list, nil
}
