package cluster

import (
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// Endpoint is a server for clients: a kube-apiserver, or Fairlead in front of it. A test that takes
// an Endpoint can run against both.
type Endpoint struct {
	URL    string // https://address:port
	CAFile string // the CA that verifies it
}

// Credentials authenticate a client. The zero value is for a client without any.
type Credentials struct {
	Pair  Pair   // client certificate. Zero: none.
	Token string // bearer token. Empty: none.
}

// RESTConfig returns the configuration of a client-go client of e, without a client-side rate
// limit, which would only hide the server's speed.
func (e Endpoint) RESTConfig(c Credentials) *rest.Config {
	return &rest.Config{
		Host:        e.URL,
		BearerToken: c.Token,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: e.CAFile, CertFile: c.Pair.CertFile, KeyFile: c.Pair.KeyFile,
		},
		QPS: -1,
	}
}

// Kubeconfig issues a client certificate, and writes a kubeconfig for e with it.
func (c *Cluster) Kubeconfig(e Endpoint, name string, l Leaf) (file string, err error) {
	defer try.Catch(&err)
	pair := try.Get(c.PKI.Client.Issue(name, l))
	file = filepath.Join(c.dir, name+".kubeconfig")
	return file, e.WriteKubeconfig(file, Credentials{Pair: pair})
}

// WriteKubeconfig writes a kubeconfig for e to file.
func (e Endpoint) WriteKubeconfig(file string, c Credentials) error {
	const name = "fairlead"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{Server: e.URL, CertificateAuthority: e.CAFile}
	cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificate: c.Pair.CertFile, ClientKey: c.Pair.KeyFile, Token: c.Token,
	}
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	cfg.CurrentContext = name
	return clientcmd.WriteToFile(*cfg, file)
}
