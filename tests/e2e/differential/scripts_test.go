//go:build e2e

package differential

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

var (
	scripts = flag.Int("scripts", 100, "how many scripts are drawn")
	seed    = flag.Uint64("seed", 1, "what they are drawn from")
	only    = flag.String("script", "", "the script to run instead")
)

// TestScripts draws scripts of what a client and a server do, and runs each directly, by
// kube-apiserver's own aggregator, and through Fairlead. The same must come of it, or what
// testdata/scripts.txtar explains. The language is there, too, and what once showed a defect.
func TestScripts(t *testing.T) {
	s := newStage(t)
	lines := s.lines("found")
	for n := range uint64(*scripts) {
		lines = append(lines, s.draw(rand.New(rand.NewPCG(*seed, n))))
	}
	if *only != "" {
		lines = strings.Split(*only, "|")
	}
	var next atomic.Int64
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for n := int(next.Add(1)) - 1; n < len(lines); n = int(next.Add(1)) - 1 {
				differs, why, got := s.differs(lane, lines[n])
				if differs != "" || *only != "" {
					s.Errorf("seed %d, line %d: %s\ndiffers: %s\ndirectly:%s\nhere:%s", *seed, n, lines[n], differs, got[0], got[1])
				}
				for _, name := range why {
					s.note("", name)
				}
			}
		})
	}
	all.Wait()
	for _, name := range slices.Sorted(maps.Keys(s.seen[""])) {
		t.Logf("of %d: %4d %s", len(lines), s.seen[""][name], name)
	}
}

const lanes = 24 // how many scripts run at a time, each with servers of its own

// stage is a world with servers that play parts.
type stage struct {
	*testing.T
	*world
	files *txtar.Archive
	runs  atomic.Int64
	mu    sync.Mutex                // guards seen
	seen  map[string]map[string]int // :: request of a run → what the server has seen → how often; and "" → explanations
}

func newStage(t *testing.T) *stage {
	s := &stage{T: t, world: newWorld(t), files: must.Get(txtar.ParseFile("testdata/scripts.txtar"))(t), seen: map[string]map[string]int{}}
	gvs := []string{}
	for i := range 2 * lanes {
		name := fmt.Sprint("h", 1+i%2, "-", i/2)
		gvs = append(gvs, name+".example.com/v1")
		server := extension.Start(t, extension.Config{CA: s.PKI.Serving.CA, Names: []string{name + ".scripts.svc"}, GroupVersions: gvs[i:], Record: -1, Wrap: s.perform})
		if i%2 == 0 {
			must.Do(t, server.Set(extension.Fault{Kind: extension.HTTP1Only}))
		}
		must.Do(t, s.Register(t.Context(), cluster.Backend{Namespace: "scripts", Service: name, Port: server.Port(), CAFile: s.PKI.Serving.CertFile, GroupVersions: gvs[i:]}))
	}
	for _, e := range []cluster.Endpoint{s.Endpoint(), s.front.Endpoint} {
		must.Soon(t, time.Minute, "all are served", func() bool {
			return !slices.ContainsFunc(gvs, func(gv string) bool { return s.ask(t, e, "/apis/"+gv, nil).Code != http.StatusOK })
		})
	}
	return s
}

// lines returns the lines of a part of the stage's file after its first paragraph.
func (s *stage) lines(name string) []string {
	i := slices.IndexFunc(s.files.Files, func(f txtar.File) bool { return f.Name == name })
	_, text, _ := strings.Cut(string(s.files.Files[i].Data), "\n\n")
	return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return line == "" })
}

// note notes what the server sees of a request of a run, and returns how often it has seen that.
func (s *stage) note(request, what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[request] == nil {
		s.seen[request] = map[string]int{}
	}
	s.seen[request][what]++
	return s.seen[request][what] - 1
}

func (s *stage) draw(r *rand.Rand) string {
	grammar := map[string][]string{}
	for _, line := range s.lines("drawn") {
		words := strings.Fields(line)
		grammar["<"+words[0]+">"] = words[1:]
	}
	var expand func(symbol string) string
	expand = func(name string) string {
		text := grammar[name][r.IntN(len(grammar[name]))]
		return regexp.MustCompile(`<\w+>`).ReplaceAllStringFunc(strings.TrimSuffix(text, "-"), expand)
	}
	line := []string{expand("<protocols>")}
	requests := [][]string{}
	for i := range 1 + r.IntN(3)*r.IntN(2) {
		text := strings.ReplaceAll(expand("<request>"), "@", strconv.Itoa(i))
		requests = append(requests, strings.FieldsFunc(text, func(r rune) bool { return r == '_' }))
	}
	for len(requests) > 0 {
		i := r.IntN(len(requests))
		if line[0][:2] == "h1" {
			i = 0
		}
		line, requests[i] = append(line, requests[i][0]), requests[i][1:]
		if len(requests[i]) == 0 {
			requests = slices.Delete(requests, i, i+1)
		}
	}
	return complete(strings.Join(line, " "))
}

// complete adds the lengths that are to be declared.
func complete(line string) string {
	declares := regexp.MustCompile(`((\d:)\w+\+l|[?.~]\d\d\dl)([+?.])`)
	for at := declares.FindStringSubmatchIndex(line); at != nil; at = declares.FindStringSubmatchIndex(line) {
		sum, part, rest := 0, "d", line[at[6]:]
		if rest = rest[:strings.IndexAny(rest+" ", " ~")]; at[4] >= 0 {
			part, rest = line[at[4]:at[5]]+"b", line
		}
		for _, n := range regexp.MustCompile(`[ .]`+part+`(\d+)`).FindAllStringSubmatch(rest, -1) {
			more, _ := strconv.Atoi(n[1])
			sum += more
		}
		line = line[:at[3]] + strconv.Itoa(sum) + line[at[3]:]
	}
	return line
}

// outcome is what came of a script on a road.
type outcome struct {
	turns []*turn
	seen  []map[string]int // of each request, by the server
	err   error
}

// String returns all of it.
func (o outcome) String() (text string) {
	for i, q := range o.turns {
		text += fmt.Sprintf("\n  %s%v %v %d bytes: %.30q", q.word[:2], q.facts, o.seen[i], len(q.body), q.body[max(0, bytes.IndexByte(q.body, '[')):])
	}
	return text
}

// compare runs a script directly and through Fairlead.
func (s *stage) compare(lane int, line string, patience time.Duration) (got [2]outcome) {
	words := strings.Fields(line)
	c := suite.TLS(s.T, s.front.Endpoint, s.Admin())
	a := actor{patience: patience, fields: []string{"user-agent", "scripts"}}
	if c.NextProtos = []string{map[string]string{"h1": "http/1.1", "h2": "h2"}[line[:2]]}; len(words[0]) > 5 {
		c.Certificates, a.fields = nil, append(a.fields, "authorization", "Bearer "+words[0][6:])
	}
	var both sync.WaitGroup
	for i, e := range []cluster.Endpoint{s.Endpoint(), s.front.Endpoint} {
		both.Go(func() {
			run, a, o := fmt.Sprint(s.runs.Add(1), "-"), a, &got[i]
			a.dial = func() *link { return dial(strings.TrimPrefix(e.URL, "https://"), c) }
			a.prefix = fmt.Sprintf("/apis/%s-%d.example.com/v1/things/%s", line[3:5], lane, run)
			o.turns, o.err = a.play(words[1:])
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, q := range o.turns {
				o.seen = append(o.seen, maps.Clone(s.seen[run+q.word[:1]]))
			}
		})
	}
	both.Wait()
	return got
}

// differs runs a script, and again while something differs that is not explained: some scripts are
// races, and have several outcomes. It returns what differs, the explanations, and the outcomes.
func (s *stage) differs(lane int, line string) (differs string, why []string, got [2]outcome) {
	var tries [][2]outcome
	for n := range time.Duration(5) {
		tries = append(tries, s.compare(lane, line, (n+1)*time.Second))
		for i := range len(tries) * len(tries) {
			got = [2]outcome{tries[i/len(tries)][0], tries[i%len(tries)][1]}
			if differs, why = s.explain(line, got[0], got[1]); differs == "" {
				return "", append(why, map[bool]string{true: "- the same", false: "- the same in another run: a race"}[n == 0]), got
			}
		}
	}
	return differs, nil, got
}

// explain returns what differs without explanation, and the explanations of the rest.
func (s *stage) explain(line string, direct, here outcome) (differs string, why []string) {
	if direct.err != nil || here.err != nil {
		return fmt.Sprint("it did not run: ", direct.err, here.err), nil
	}
	behind := ""
	for i, d := range direct.turns {
		h, diff := here.turns[i], ""
		for _, name := range []string{"status", "own", "interim", "length", "field", "after", "trailer", "end"} {
			if d.facts[name] != h.facts[name] {
				diff += fmt.Sprintf("%s=%s>%s;", name, d.facts[name], h.facts[name])
			}
		}
		if less, more := bytes.HasPrefix(d.body, h.body), bytes.HasPrefix(h.body, d.body); d.facts["own"]+h.facts["own"] != "yesyes" && (!less || !more) {
			diff += "body=" + map[bool]string{less: "less;", more: "more;", !less && !more: "other;"}[true]
		}
		for _, what := range []string{"came", "gone"} {
			if a, b := direct.seen[i][what], here.seen[i][what]; a != b {
				diff += fmt.Sprintf("%s=%d>%d;", what, a, b)
			}
		}
		others := slices.DeleteFunc(strings.Fields(line), func(w string) bool { return w == d.word })
		text := strings.Join(append(others, "@"+d.word), " ") + behind
		if d.declared >= 0 && (d.sent != d.declared || line[:2] == "h2" && !strings.Contains(line, d.word[:2]+"e")) {
			text += " short"
		}
		if d.facts["end"] != "clean" && h.facts["end"] != "clean" {
			text += " cut"
		}
		for _, rule := range s.lines("explained") {
			p := regexp.MustCompile(` {2,}`).Split(rule, 3)
			if left := regexp.MustCompile(p[1]).ReplaceAllString(diff, ""); left != diff && regexp.MustCompile(p[0]).MatchString(text) {
				diff, why = left, append(why, p[2])
			}
		}
		if diff != "" {
			differs += d.word[:2] + " " + diff + " "
		}
		if line[:2] == "h1" && (d.facts["end"]+h.facts["end"] != "cleanclean" || d.facts["after"]+h.facts["after"] != "" || strings.Contains(d.word, "+u") || d.facts["status"] == "101") {
			behind = " behind"
		}
	}
	return differs, slices.Compact(slices.Sorted(slices.Values(why)))
}
