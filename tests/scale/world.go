package main

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// perService is how many group-versions one extension server has: some three, with two versions each.
const perService = 5

// world is a Fairlead and its backends.
type world struct {
	dir     string
	cmd     *exec.Cmd
	servers []*extension.Server // one for each Service
	client  *http.Client
	address string // of the front door
	admin   string
	// ready and available are how long after its start it was ready, and every APIService available.
	ready, available time.Duration
}

func services(n int) int { return (n + perService - 1) / perService }

func groupOf(i int) string { return fmt.Sprintf("group%d.example.com", i) }

// build makes the program.
func build(ctx context.Context) (bin string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "fairlead-scale-")
	if err != nil {
		return "", nil, err
	}
	bin = filepath.Join(dir, "fairlead")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", bin, "github.com/fairlead-proxy/fairlead/cmd/fairlead").CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("building: %w\n%s", err, out)
	}
	return bin, func() { _ = os.RemoveAll(dir) }, nil
}

// patience is how long a Fairlead may take: ten thousand handshakes each way on two processors.
const patience = 5 * time.Minute

// start runs a Fairlead over n APIServices, which are probed at an interval of their own if it is not zero, and waits until it is ready.
func start(ctx context.Context, bin string, n int, interval time.Duration) (w *world, err error) {
	w = &world{}
	if w.dir, err = os.MkdirTemp("", "fairlead-scale-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	ca := pki.NewCA("scale")
	for i := 0; i < n; i += perService {
		var groups []string
		for j := i; j < min(i+perService, n); j++ {
			groups = append(groups, groupOf(j)+"/v1")
		}
		server, err := extension.New(extension.Config{GroupVersions: groups, CA: ca, RequestHeaderCA: ca.Pool(), Objects: 1, Record: -1})
		if err != nil {
			return nil, err
		}
		w.servers = append(w.servers, server)
	}
	if err := w.manifests(ca, n, interval); err != nil {
		return nil, err
	}
	args, err := w.arguments(ca)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(w.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	w.cmd = exec.CommandContext(ctx, bin, args...)
	w.cmd.Stderr = log
	begun := time.Now()
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	err = until(ctx, 50*time.Millisecond, patience, func() error { _, err := w.get(ctx, w.admin+"/readyz"); return err })
	w.ready = time.Since(begun)
	return w, err
}

// manifests writes APIServices, and Services and EndpointSlices of perService of them each.
func (w *world) manifests(ca *pki.CA, n int, interval time.Duration) error {
	annotations := "fairlead.dev/tls-server-name: localhost"
	if interval > 0 {
		annotations += ", fairlead.dev/probe-interval: " + interval.String()
	}
	bundle := base64.StdEncoding.EncodeToString(ca.PEM())
	if err := os.Mkdir(filepath.Join(w.dir, "registry"), 0o700); err != nil {
		return err
	}
	for s, server := range w.servers {
		_, port, err := net.SplitHostPort(server.Addr())
		if err != nil {
			return err
		}
		var b strings.Builder
		fmt.Fprintf(&b, "{apiVersion: v1, kind: Service, metadata: {namespace: scale, name: s%d}, spec: {clusterIP: None, ports: [{name: https, port: 443}]}}\n---\n", s)
		fmt.Fprintf(&b, "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: scale, name: s%[1]d, labels: {kubernetes.io/service-name: s%[1]d}}, addressType: IPv4, ports: [{name: https, port: %[2]s}], endpoints: [{addresses: [127.0.0.1]}]}\n", s, port)
		for i := s * perService; i < min((s+1)*perService, n); i++ {
			fmt.Fprintf(&b, "---\n{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.%[1]s, annotations: {%[4]s}}, spec: {group: %[1]s, version: v1, groupPriorityMinimum: 100, versionPriority: 1, caBundle: %[2]s, service: {namespace: scale, name: s%[3]d}}}\n",
				groupOf(i), bundle, s, annotations)
		}
		if err := os.WriteFile(filepath.Join(w.dir, "registry", fmt.Sprintf("s%d.yaml", s)), []byte(b.String()), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// arguments makes keys and picks ports.
func (w *world) arguments(ca *pki.CA) ([]string, error) {
	var files []string
	for name, leaf := range map[string]pki.Leaf{
		"serving": {CommonName: "fairlead", Names: []string{"127.0.0.1", "localhost"}}, "proxy": {CommonName: "front-proxy-client"},
	} {
		cert, key, err := ca.Issue(leaf).WriteFiles(w.dir, name)
		if err != nil {
			return nil, err
		}
		flag := map[string]string{"serving": "--tls-cert-file=%s --tls-private-key-file=%s", "proxy": "--proxy-client-cert-file=%s --proxy-client-key-file=%s"}[name]
		files = append(files, strings.Fields(fmt.Sprintf(flag, cert, key))...)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "ca.crt"), ca.PEM(), 0o600); err != nil {
		return nil, err
	}
	var ports [2]string
	for i := range ports {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // both at once, so that they differ
		_, ports[i], _ = net.SplitHostPort(l.Addr().String())
	}
	w.address, w.admin = "127.0.0.1:"+ports[0], "https://127.0.0.1:"+ports[1]
	tc := &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Issue(pki.Leaf{CommonName: "admin", Organizations: []string{"system:masters"}}).TLS()}, MinVersion: tls.VersionTLS12}
	w.client = &http.Client{Transport: &http.Transport{TLSClientConfig: tc, ForceAttemptHTTP2: true}, Timeout: time.Minute}
	return append([]string{"serve", "--registry=dir:" + filepath.Join(w.dir, "registry"), "--bind-address=127.0.0.1", "--secure-port=" + ports[0], "--admin-secure-port=" + ports[1],
		"--client-ca-file=" + filepath.Join(w.dir, "ca.crt"), "--authorization-mode=AlwaysAllow"}, files...), nil
}

func (w *world) close() {
	if w.cmd != nil && w.cmd.Process != nil {
		_ = w.cmd.Process.Signal(syscall.SIGKILL)
		_ = w.cmd.Wait() // it was killed
	}
	for _, s := range w.servers {
		s.Close()
	}
	_ = os.RemoveAll(w.dir)
}

// log is the end of what Fairlead said, as a fault.
func (w *world) log() error {
	b, err := os.ReadFile(filepath.Join(w.dir, "log"))
	if err != nil {
		return err
	}
	const most = 2 << 10 // some ten lines
	return fmt.Errorf("its log ends with\n%s", b[max(len(b)-most, 0):])
}

// until asks until there is no fault.
func until(ctx context.Context, every, most time.Duration, ask func() error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

func (w *world) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json")
	resp, err := w.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return body, err
}

// metrics are all series of a scrape that have no labels.
func (w *world) metrics(ctx context.Context) (map[string]float64, error) {
	body, err := w.get(ctx, w.admin+"/metrics")
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil && !strings.HasPrefix(line, "#") {
			all[name] = v
		}
	}
	return all, nil
}
