package main

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

// front answers as a Fairlead with its local apiserver does, and records the requests.
type front struct {
	*httptest.Server
	mu      sync.Mutex         // guards the fields below while a command runs: discovery is asked at once
	answers map[string][]reply // by path, one for each request; the last one is repeated
	asked   []string           // with the impersonated user
	agent   string             // of the last request
}

type reply struct {
	code int
	text string
}

func newFront(t *testing.T) *front {
	t.Helper()
	f := &front{answers: map[string][]reply{}}
	f.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.agent = r.UserAgent()
		f.asked = append(f.asked, strings.TrimSpace(r.URL.String()+" "+r.Header.Get("Impersonate-User")))
		all := f.answers[r.URL.Path]
		if len(all) == 0 {
			http.NotFound(w, r)
			return
		}
		f.answers[r.URL.Path] = all[min(1, len(all)-1):]
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(all[0].code)
		_, _ = io.WriteString(w, all[0].text)
	}))
	t.Cleanup(f.Close)
	return f
}

// kubeconfig writes a kubeconfig for s, whose certificate it trusts.
func kubeconfig(t *testing.T, s *httptest.Server) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: s.URL}
	if s.Certificate() != nil {
		c.Clusters["c"].CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	}
	c.Contexts["c"], c.CurrentContext = &clientcmdapi.Context{Cluster: "c"}, "c"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*c, file))
	return file
}

// run runs one command, and returns what a terminal shows, with the exit code of a failure.
func run(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	if out.Len() > 0 && !bytes.HasSuffix(out.Bytes(), []byte("\n")) {
		out.WriteString("\n") // of a template
	}
	switch {
	case errors.Is(err, errUnavailable):
		fmt.Fprintf(&out, "exit %d\n", exitUnavailable)
	case cli.IsUsage(err):
		fmt.Fprintf(&out, "exit 2: %v\n", err)
	case err != nil:
		fmt.Fprintf(&out, "exit 1: %v\n", err)
	}
	return out.String()
}

// Each story lists what a Fairlead answers or what manifests say, the commands, and what they print.
func TestStories(t *testing.T) {
	story.Tell(t, func(t *testing.T, s *story.Story) {
		f := newFront(t)
		t.Setenv("KUBECONFIG", kubeconfig(t, f.Server))
		t.Setenv("KUBECACHEDIR", t.TempDir())
		stdin := ""
		dir, fill := files(t)
		for at, words := range s.Steps() {
			switch words[0] {
			case "answer": // [code] path file...
				code, err := strconv.Atoi(words[1])
				if err != nil {
					code, words = http.StatusOK, slices.Insert(words, 1, "")
				}
				f.answers[words[2]] = nil
				for _, file := range words[3:] {
					text := s.File(t, file)
					if strings.HasSuffix(file, ".yaml") {
						text = string(must.Get(yaml.YAMLToJSON([]byte(text)))(t))
					}
					f.answers[words[2]] = append(f.answers[words[2]], reply{code, text})
				}
			case "asked": // [prefix] > file
				asked := slices.DeleteFunc(f.asked, func(r string) bool { return !strings.HasPrefix(r, words[1]) && words[1] != ">" })
				s.Expect(t, at, words[len(words)-1], strings.Join(asked, "\n")+"\n")
				f.asked = nil
			case "given", "and": // [file...] text | replacement: the standard input, or a further change
				files := slices.IndexFunc(append(words[1:], ""), func(w string) bool { return !strings.HasSuffix(w, ".yaml") })
				if files > 0 {
					stdin = ""
				}
				for i, file := range words[1 : 1+files] {
					stdin += []string{"", "---\n"}[min(i, 1)] + s.File(t, file)
				}
				if from, to, change := strings.Cut(strings.Join(words[1+files:], " ")+" ", " | "); change {
					must.Be(t, strings.Contains(stdin, from), "%s: there is no %q to replace", at, from)
					stdin = strings.Replace(stdin, from, strings.TrimSpace(to), 1)
				}
				stdin = fill.Replace(stdin)
			default: // command > file
				out := run(t, stdin, strings.Fields(fill.Replace(strings.Join(words[:len(words)-2], " ")))...)
				s.Expect(t, at, words[len(words)-1], strings.NewReplacer(f.URL, "SERVER", dir, "DIR").Replace(out))
			}
		}
	})
}
