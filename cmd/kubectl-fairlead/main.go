// Command kubectl-fairlead has Fairlead's subcommands for people. kubectl finds it in PATH as a plugin, and fairlead
// executes it. It is a program of its own: kubectl's flags link kustomize, which the process with the key must not.
//
// status and explain use kubectl's own kubeconfig and flags, need no more access than kubectl has, and show what the
// server says. They only look up a resource's path, and CustomResourceDefinitions that claim its group-version.
//
// Each command is used by one goroutine.
package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/cmd/advice"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

var version = "devel" // set by the linker (make build)

const exitUnavailable = 3 // the exit code if the subject is unavailable or refused, for scripts that wait

const elsewhere = "See --server, --context and $KUBECONFIG" // if another server than the user's answers, or none

var errUnavailable = errors.New("unavailable") // ends a command that worked, and printed what is unavailable or refused

func main() {
	err := cli.Run(root())
	if errors.Is(err, errUnavailable) {
		os.Exit(exitUnavailable)
	}
	cli.Exit(err)
}

func root() *cobra.Command {
	cmd := cli.Root("kubectl-fairlead",
		"Ask Fairlead, the front door of a cluster, about its state and where requests go", version,
		statusCommand(), topCommand(), explainCommand(), lintCommand(), initCommand(),
		moveCommand("adopt", "Let the cluster's own aggregator ask Fairlead for these APIServices", (*mover).adopt),
		moveCommand("release", "Undo adopt: the cluster asks the extension server again", (*mover).release))
	cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: called(os.Args[0])}
	return cmd
}

// called returns the command's name as typed, for help: fairlead passes its own name on.
func called(self string) string {
	if name := filepath.Base(self); !strings.HasPrefix(name, "kubectl-") {
		return name
	}
	return "kubectl fairlead"
}

// help has what the commands say of themselves.
//
//go:embed help/*.txt
var help embed.FS

func long(command string) string {
	text, _ := help.ReadFile("help/" + command + ".txt") // each caller has one
	return strings.TrimSpace(string(text))
}

type client struct {
	flags     *genericclioptions.ConfigFlags
	out       io.Writer
	base      *url.URL
	http      *http.Client
	apiserver rest.Interface // of the cluster behind Fairlead
	palette   palette
	names     []string // of the APIServices in a status. Empty means all
}

func connect(flags *genericclioptions.ConfigFlags, out io.Writer) (*client, error) {
	flags.WrapConfigFn = func(rc *rest.Config) *rest.Config { // discovery and replicas read it, too
		rc.UserAgent = "kubectl-fairlead/" + version
		return rc
	}
	rc, err := flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w", err)
	}
	rc.QPS = -1 // no limit: requests are sequential
	base, _, err1 := rest.DefaultServerUrlFor(rc)
	hc, err2 := rest.HTTPClientFor(rc)
	core, err3 := corev1client.NewForConfigAndClient(rc, hc)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w", err)
	}
	return &client{
		flags: flags, out: out, base: base, http: hc, apiserver: core.RESTClient(), palette: paletteFor(out),
	}, nil
}

// open gets a path below the server's address. The caller closes the body.
func (c *client) open(ctx context.Context, path string, query url.Values) (*http.Response, error) {
	u := c.base.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if c.flags != nil && errors.As(err, new(*net.OpError)) && ctx.Err() == nil { // it is no replica's address
			err = fmt.Errorf("%w; is that the right server? %s", err, elsewhere)
		}
		return nil, fmt.Errorf("asking %s: %w", path, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound && strings.HasPrefix(path, answer.Below) {
		return nil, errors.New("the server has no such page: is it Fairlead, or kube-apiserver itself? " + elsewhere)
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // a Status is far smaller. What is cut short says why, too
	var status struct{ Message string }
	if json.Unmarshal(text, &status) == nil && status.Message != "" {
		text = []byte(status.Message)
	}
	said := strings.TrimSpace(string(text))
	do := advice.For(said)
	if resp.StatusCode == http.StatusUnauthorized {
		do = login
	}
	return nil, fmt.Errorf("asking %s: %s: %s", path, resp.Status, joined("; ", said, do))
}

func (c *client) get(ctx context.Context, path string, query url.Values, into any) error {
	resp, err := c.open(ctx, path, query)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	const most = 256 << 20 // 10,000 APIServices with certificates take 30 MB
	if err := json.NewDecoder(io.LimitReader(resp.Body, most)).Decode(into); err != nil {
		if errors.As(err, new(*json.SyntaxError)) { // a page, such as of a login
			err = fmt.Errorf("%w; that is no answer of an API server. %s", err, elsewhere)
		}
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}

func (c *client) status(ctx context.Context) (*answer.Status, error) {
	s := &answer.Status{}
	err := c.get(ctx, answer.Below+"/status", nil, s)
	other := func(a answer.APIService) bool { return len(c.names) > 0 && !slices.Contains(c.names, a.Name) }
	s.APIServices = slices.DeleteFunc(s.APIServices, other)
	return s, err
}

// stateOf returns the state of the Fairlead to which cfg leads, empty at kube-apiserver itself.
func stateOf(ctx context.Context, cfg *rest.Config) *answer.Status {
	base, _, _ := rest.DefaultServerUrlFor(cfg) // this and the next line cannot fail: inspect has made a client
	hc, _ := rest.HTTPClientFor(cfg)
	s, _ := (&client{base: base, http: hc}).status(ctx)
	return s
}
