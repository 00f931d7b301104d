package cluster

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// Fairlead describes a Fairlead in front of the cluster's first kube-apiserver.
type Fairlead struct {
	Path      string   // the executable
	Registry  string   // its --registry flag; it then runs without a local apiserver. Empty: with one.
	Name      string   // its name in errors and of its log file. Empty: fairlead.
	Address   string   // the address that it listens on. Empty: Config.Loopback.
	Netns     string   // the network namespace (of ip netns) to run it in. Empty: that of this process.
	Port      int      // the front port. Zero: a free one.
	AdminPort int      // the port for health and metrics. Zero: a free one.
	CAFile    string   // verifies its serving certificate, if Args replace that. Empty: the cluster's serving CA.
	Ready     string   // the path on the admin port that must pass. Empty: /readyz.
	Args      []string // appended to the arguments of fairlead serve; later ones override. Nil: none.
}

// Front is a running Fairlead.
type Front struct {
	Part     *Part    // its process
	Endpoint Endpoint // the front port
	Admin    Endpoint // health, metrics, status
}

// StartFairlead starts f with all files that it needs from the PKI, and waits until it is ready.
func (c *Cluster) StartFairlead(ctx context.Context, f Fairlead) (running *Front, err error) {
	defer try.Catch(&err)
	free := try.Get(c.cfg.FreePorts(2))
	f.Name, f.Address = cmp.Or(f.Name, "fairlead"), cmp.Or(f.Address, c.cfg.Loopback)
	f.Port, f.AdminPort = cmp.Or(f.Port, free[0]), cmp.Or(f.AdminPort, free[1])
	serving := try.Get(c.PKI.Serving.Issue(f.Name, Leaf{User: f.Name, Names: []string{
		f.Address, "localhost", "kubernetes.default.svc", "10.96.0.1", "fd00:96::1",
	}}))
	from := "--registry=" + f.Registry
	if f.Registry == "" {
		client := Leaf{User: "fairlead", Groups: []string{mastersGroup}}
		from = "--kubeconfig=" + try.Get(c.Kubeconfig(c.Endpoint(), f.Name+"-client", client))
	}
	args := []string{
		"serve", from,
		"--bind-address=" + f.Address,
		fmt.Sprintf("--secure-port=%d", f.Port),
		fmt.Sprintf("--admin-secure-port=%d", f.AdminPort),
		"--tls-cert-file=" + serving.CertFile,
		"--tls-private-key-file=" + serving.KeyFile,
		"--client-ca-file=" + c.PKI.Client.CertFile,
		"--requestheader-client-ca-file=" + c.PKI.FrontProxy.CertFile,
		"--requestheader-allowed-names=front-proxy-client",
		"--proxy-client-cert-file=" + c.PKI.FrontProxyPair.CertFile,
		"--proxy-client-key-file=" + c.PKI.FrontProxyPair.KeyFile,
		"--allow-loopback-backends", // all test backends are on loopback
	}
	ca := cmp.Or(f.CAFile, c.PKI.Serving.CertFile)
	front := &Front{
		Endpoint: Endpoint{URL: url("https", f.Address, f.Port), CAFile: ca},
		Admin:    Endpoint{URL: url("https", f.Address, f.AdminPort), CAFile: ca},
	}
	front.Part, err = c.Run(ctx, Command{
		Name: f.Name, Path: f.Path, Args: append(args, f.Args...), Netns: f.Netns, Ready: front.Admin.Serves(cmp.Or(f.Ready, "/readyz"), Credentials{}),
	})
	return front, err
}

// StartHAProxy runs HAProxy in TCP mode, as kubeadm's documentation has it, with sections that listen. It looks at
// /readyz of their servers that say "check" twice a second.
func (c *Cluster) StartHAProxy(ctx context.Context, name, sections string, ready func(context.Context) error) (*Part, error) {
	const defaults = `
defaults
    mode tcp
    timeout connect 1s
    timeout check 1s
    timeout client 1h
    timeout server 1h
    retries 3
    option redispatch 1
    balance roundrobin
    option httpchk GET /readyz
    default-server check-ssl verify none inter 500ms fall 2 rise 2
`
	file := filepath.Join(c.dir, name+".cfg")
	if err := os.WriteFile(file, []byte(defaults+sections), 0o600); err != nil {
		return nil, err
	}
	return c.Run(ctx, Command{Name: name, Path: "haproxy", Args: []string{"-db", "-f", file}, Ready: ready})
}
