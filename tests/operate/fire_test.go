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

// alarm is how a test makes one alert fire, and ends what it fires about.
type alarm struct {
	labels      map[string]string // of the alert that is meant, beside its name
	before      string            // what Prometheus must have seen first, as an expression; empty: nothing
	fire, clear func(t *testing.T)
}

type prometheus struct {
	address string
	targets string // file of what it scrapes
}

// testFire lets a real Prometheus scrape a Fairlead with a ServiceAccount's token, and makes each
// of the shipped alerts fire and clear.
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
				t.Errorf("%s is shipped and nothing makes it fire", name)
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
			t.Errorf("%s is tested and not shipped", name)
		}
	})
	// These two are about all replicas that Prometheus knows, so nothing else may come and go
	// meanwhile.
	t.Run("FairleadReplicaDown", func(t *testing.T) {
		p.scrape(t, front.Admin, w.front.Admin)
		p.knows(t, `quantile_over_time(0.5, count(up{job="fairlead"} == 1)[30s:1s]) == 2`)
		p.await(t, "FairleadReplicaDown", nil, false)
		p.scrape(t, front.Admin)
		p.await(t, "FairleadReplicaDown", nil, true)
		p.await(t, "FairleadReplicaDown", nil, false) // that there is one is what is usual now
	})
	t.Run("FairleadDown", func(t *testing.T) {
		p.await(t, "FairleadDown", nil, false)
		front.Part.Kill()
		p.await(t, "FairleadDown", nil, true)
		must.Do(t, front.Part.Restart(t.Context()))
		p.await(t, "FairleadDown", nil, false)
	})
}

// unfired are the alerts that are only tried by promtool (deploy/tests): what fires them here would
// break what others are tried with, on the same cluster.
var unfired = map[string]bool{
	"FairleadLocalAPIServerDown": true, "FairleadNoLocalAPIServer": true, "FairleadReviewsFailing": true, // all ask the one kube-apiserver
	"FairleadAcceptStalls": true, "FairleadAuditLost": true, // the front door that is full, or whose disk is
	"FairleadRegistryProblems":      true, // others have some all the time
	"FairleadEntrypointUnpublished": true, // an hour apart from FairleadEntrypointContested
}

// spare is a serving pair that nobody is served with, so that it can expire and break. It is good
// for nine days: no alert is about it.
func (w *world) spare(t *testing.T, name string) cluster.Pair {
	t.Helper()
	return w.reissue(t, name, 9*24*time.Hour)
}

func (w *world) reissue(t *testing.T, name string, lasts time.Duration) cluster.Pair {
	t.Helper()
	pair := must.Get(w.PKI.Serving.Issue(name, cluster.Leaf{User: name, Names: []string{name + ".example.com"}, NotAfter: time.Now().Add(lasts)}))(t)
	return pair
}

// startPrometheus runs Prometheus with the shipped alerts. Their times are shortened, so that
// minutes become seconds: `for` is left out, and every range is 5 s long, five scrapes, but for the
// one of hours in steps, which is 30 s. Nothing else of them is changed, and every series is a real
// one.
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

// scrape tells Prometheus which admin ports there are.
func (p *prometheus) scrape(t *testing.T, admins ...cluster.Endpoint) {
	t.Helper()
	list := []map[string][]string{{"targets": {}}}
	for _, a := range admins {
		list[0]["targets"] = append(list[0]["targets"], strings.TrimPrefix(a.URL, "https://"))
	}
	data := must.Get(json.Marshal(list))(t)
	must.Do(t, os.WriteFile(p.targets+".new", data, 0o600))
	must.Do(t, os.Rename(p.targets+".new", p.targets)) // at once: half a file would be no targets
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

// knows waits until an expression has a result: until the world is as it should be before something
// is broken, and Prometheus has seen it.
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

// firing are the labels of the alerts that fire.
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
