package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fairlead-proxy/fairlead/certs"
)

// authentication reads the cluster's authentication ConfigMap. It returns false if the cluster
// cannot be reached.
func (l *linter) authentication(ctx context.Context, client corev1client.CoreV1Interface) (map[string][]byte, bool) {
	cm, err := client.ConfigMaps(metav1.NamespaceSystem).Get(ctx, authenticationMap, metav1.GetOptions{})
	if network := net.Error(nil); errors.As(err, &network) {
		l.error("local apiserver", ownAddress, "it cannot be reached: %v", err)
		return nil, false
	}
	if err != nil {
		l.warn("ConfigMap "+metav1.NamespaceSystem+"/"+authenticationMap, doFor(err, "bind the Role extension-apiserver-authentication-reader"), "reading: %v", err)
		return nil, true
	}
	authentication := make(map[string][]byte, len(cm.Data))
	for k, v := range cm.Data {
		authentication[k] = []byte(v)
	}
	return authentication, true
}

// proxyClient compares the proxy client certificate with the cluster's authentication ConfigMap.
func (l *linter) proxyClient(authentication map[string][]byte) {
	if l.Certs.ProxyClient.Cert == "" {
		if authentication != nil && !l.impersonates() {
			l.found = append(l.found, certs.CheckProxyClient(nil, authentication)...)
			const name = "front-proxy-client" // of the manifests; a Fairlead that runs may have another certificate
			var names []string
			_ = json.Unmarshal(authentication[namesKey], &names)                                // certs reports what is broken
			if len(l.survey.replicas) == 0 && len(names) > 0 && !slices.Contains(names, name) { // none means any name
				l.add(certs.SeverityToDo, "front proxies", "set --requestheader-allowed-names to the name of your certificate",
					"the cluster knows them by the names %q, and the manifests name %q", names, name)
			}
		}
		l.warn("proxy client certificate", "give --proxy-client-cert-file and --proxy-client-key-file, as for serve", "it was not checked, because it was not given")
		return
	}
	if l.impersonates() {
		authentication = nil // the cluster never sees it; each extension server is checked separately
	}
	if chain := l.pair("proxy client certificate", l.Certs.ProxyClient); chain != nil {
		found := certs.CheckProxyClient(chain, authentication)
		if l.impersonates() {
			found = found[:len(found)-1] // without the finding that it was not compared
		}
		l.found = append(l.found, found...)
	}
}
