package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// authConfigMap names the ConfigMap in which a cluster publishes which CAs its extension servers
// trust.
func authConfigMap() types.NamespacedName {
	return types.NamespacedName{Namespace: "kube-system", Name: "extension-apiserver-authentication"}
}

func (d *door) makeTrust(context.Context) (err error) {
	d.trust, err = trust.New(trust.Config{
		Table: d.registry.Table, Watch: d.watchConfigMap, Renewed: func(apiService string) { d.prober.Renew(apiService) }, Logger: d.log, Metrics: d.metrics,
		ClientCertificate: func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return d.certs.ProxyClient().GetClientCertificate(r)
		},
	})
	if err != nil {
		return err
	}
	version, err1 := cliflag.TLSVersion(d.o.minTLSVersion)
	suites, err2 := cliflag.TLSCipherSuites(d.o.cipherSuites)
	if err := errors.Join(err1, err2); err != nil {
		return cli.Usage(err)
	}
	d.certs, err = certs.New(certs.Config{
		Serving: certs.PairSource{Cert: d.o.tlsCert, Key: d.o.tlsKey}, SNI: sniPairs(d.o.sniPairs),
		MinVersion: version, CipherSuites: suites, HTTP1: !d.o.http2,
		ClientCA: d.o.clientCA, RequestHeaderCA: d.o.requestHeaderCA, AllowedNames: d.o.allowedNames,
		ConfigMap: authConfigMap(), TrustConfigMap: d.o.authConfigMap,
		ProxyClient: certs.PairSource{Cert: d.o.proxyCert, Key: d.o.proxyKey},
		Files:       append(d.localFiles(), d.makeTokens()...),
		Watch:       d.watchConfigMap, Logger: d.log, Metrics: d.metrics,
	})
	if err != nil {
		return cli.Usage(err)
	}
	d.loop("certificates", d.certs.Run)
	d.loop("backend trust", d.trust.Run)
	return nil
}

// sniPairs reads certfile,keyfile[:name,…], as kube-apiserver does. A flag of another form yields a
// pair without a file, which validate refuses.
func sniPairs(flags []string) []certs.PairSource {
	var pairs []certs.PairSource
	for _, f := range flags {
		files, names, _ := strings.Cut(f, ":")
		cert, key, _ := strings.Cut(files, ",")
		p := certs.PairSource{Cert: cert, Key: key}
		if names != "" {
			p.Names = strings.Split(names, ",")
		}
		pairs = append(pairs, p)
	}
	return pairs
}

// watchConfigMap adapts the registry's watch to package certs.
func (d *door) watchConfigMap(ctx context.Context, ref types.NamespacedName, changed func(map[string][]byte, error)) error {
	return d.registry.Watch(ctx, ref.Namespace, ref.Name, func(cm *corev1.ConfigMap) {
		if cm == nil {
			changed(nil, fmt.Errorf("getting ConfigMap %s/%s: %w", ref.Namespace, ref.Name, fs.ErrNotExist))
			return
		}
		data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
		for k, v := range cm.Data {
			data[k] = []byte(v)
		}
		maps.Copy(data, cm.BinaryData)
		changed(data, nil)
	})
}

// localTLS makes the TLS configuration of the local apiserver's pools: the kubeconfig's CA without
// its credentials. With X-Remote-* it presents our proxy client certificate; with impersonation it
// presents the kubeconfig's own certificate, if there is one.
func (d *door) localTLS(withCertificate bool) (*tls.Config, error) {
	tc, err := d.trust.LocalTLS(withCertificate && d.credential == nil)
	if err != nil {
		return nil, err
	}
	if withCertificate && d.credential != nil {
		tc.GetClientCertificate = d.credential.clientCertificate
	}
	tc.ServerName = d.kube.ServerName
	// The kubeconfig's insecure-skip-tls-verify, which is discouraged, works as in kubectl.
	if d.kube.Insecure {
		tc.InsecureSkipVerify, tc.VerifyConnection = true, nil
	}
	return tc, nil
}

// localFiles returns the files to follow for the connection to the local apiserver: the kubeconfig,
// and the CA that it or the pod names.
func (d *door) localFiles() []certs.File {
	if d.o.alone() {
		return nil
	}
	var files []certs.File
	named := caFile(d.kube)
	inUse := named // by the kubeconfig in force; one goroutine calls every Take
	if named != "" {
		files = append(files, certs.File{Use: "local-apiserver-ca", Path: named, Take: func(data []byte) error {
			if inUse != named {
				return nil
			}
			return d.trust.LocalBundle(data)
		}})
	}
	if d.follower != nil {
		files = append(files, certs.File{Use: "kubeconfig", Path: d.o.kubeconfig, Held: d.follower.certificate, Take: func(data []byte) error {
			c, err := d.follower.reload(d.o.kubeconfig, data)
			if err == nil && d.credential != nil {
				err = d.credential.take(c)
			}
			if err != nil || named != "" && inUse == named && caFile(c) == named {
				return err
			}
			if err = d.takeLocalCA(c, named); err == nil {
				inUse = caFile(c)
			}
			return err
		}})
	}
	return files
}

// caFile returns the file with the CA of a kubeconfig. Empty means that the CA is embedded, or that
// there is none.
func caFile(c *rest.Config) string {
	if len(c.CAData) > 0 {
		return ""
	}
	return c.CAFile
}

// takeLocalCA takes the CA of a kubeconfig that has another source than before. Only the file that
// was named at the start is followed.
func (d *door) takeLocalCA(c *rest.Config, followed string) error {
	file := caFile(c)
	if file == "" {
		return d.trust.LocalBundle(c.CAData)
	}
	if file != followed {
		d.log.Warn("the kubeconfig names another CA file: restart to follow its changes", "kubeconfig", d.o.kubeconfig, "file", file)
	}
	bundle, err := os.ReadFile(file)
	if err == nil && len(bundle) == 0 { // it would mean the system's roots
		err = errors.New("it is empty")
	}
	if err != nil {
		return fmt.Errorf("reading the local apiserver's CA from %s: %w", file, err)
	}
	return d.trust.LocalBundle(bundle)
}
